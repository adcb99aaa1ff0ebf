"""A model that ranks read in parts, and the same divided by DeepSpeed from its full tensors: slice for slice the same.

Real processes and DeepSpeed, gloo between them, no Ray. Two ranks; `make ranks` has four.
"""

import multiprocessing
import os
from multiprocessing.queues import Queue
from pathlib import Path

import pytest
import torch
from tiny_models import VOCAB_SIZE, tiny_model

from goose_ray.models.shard_source import CheckpointSource
from goose_ray.runner.rank_place import GangPlace
from goose_ray.runner.worker import TensorParallelRank, _divided

RANKS = int(os.environ.get("GOOSE_RANKS", "2"))
FAMILIES = ("llama", "qwen2", "qwen3", "mistral")
HEADS = {
    2: {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "intermediate_size": 97},
    4: {"num_attention_heads": 12, "num_key_value_heads": 6, "head_dim": 8, "intermediate_size": 331},
}[RANKS]
_TIMEOUT_S = 300.0


def compare(number: int, folder: Path, ports: "Queue[int]", found: "Queue[str]") -> None:
    """Runs in a rank's process. Says what differs, or how many tensors were the same."""
    torch.set_num_threads(1)
    rank = TensorParallelRank(number, "cpu", 1)
    if number == 0:
        port = rank.open_store("127.0.0.1", _TIMEOUT_S)
        for _ in range(RANKS):
            ports.put(port)
    place = GangPlace(
        rank=number,
        num_ranks=RANKS,
        local_rank=number,
        # as if each were alone on its host: gloo, and nothing to compile
        num_local=1,
        host="127.0.0.1",
        port=ports.get(timeout=_TIMEOUT_S),
        timeout_s=_TIMEOUT_S,
    )
    rank.join(place)
    for family in FAMILIES:
        source = CheckpointSource(str(folder / family), torch.float32)
        parts = source.parts()
        assert parts is not None
        full = _divided(source.whole(), RANKS)
        read = _divided(parts.model, RANKS)
        parts.fill(read, rank=number, num_ranks=RANKS)
        for of_full, of_read in (
            (dict(full.named_parameters()), dict(read.named_parameters())),
            (dict(full.named_buffers()), dict(read.named_buffers())),
        ):
            assert of_full.keys() == of_read.keys()
            for name, tensor in of_full.items():
                assert torch.equal(tensor, of_read[name]), f"{family} {name}"
        token_ids = torch.arange(20)[None]
        with torch.inference_mode():
            outputs = [model.base_model(token_ids).last_hidden_state for model in (full, read)]
        assert torch.equal(*outputs), family
        found.put(f"{family} {len(dict(read.named_parameters()))}")
    torch.distributed.barrier()


def test_what_ranks_read_is_what_deepspeed_divides(tmp_path: Path) -> None:
    for family in FAMILIES:
        tiny_model(family, **HEADS, tie_word_embeddings=family == "qwen3").save_pretrained(tmp_path / family)
    context = multiprocessing.get_context("spawn")
    ports: Queue[int] = context.Queue()
    found: Queue[str] = context.Queue()
    ranks = [context.Process(target=compare, args=(number, tmp_path, ports, found)) for number in range(RANKS)]
    for rank in ranks:
        rank.start()
    try:
        for rank in ranks:
            rank.join(_TIMEOUT_S)
        assert [rank.exitcode for rank in ranks] == [0] * RANKS
    finally:
        for rank in ranks:
            rank.kill()
            rank.join()
    said = sorted(found.get(timeout=10) for _ in range(RANKS * len(FAMILIES)))
    assert len({line.split()[0] for line in said}) == len(FAMILIES)
    assert all(int(line.split()[1]) >= 3 * 9 for line in said)


@pytest.mark.parametrize("num_ranks", [2, 4, 5])
def test_parts_of_the_output_embeddings_are_all_of_them(tmp_path: Path, num_ranks: int) -> None:
    """Of a vocabulary of 128 the last of five has fewer."""
    model = tiny_model("llama")
    model.save_pretrained(tmp_path)
    parts = CheckpointSource(str(tmp_path), torch.float32).parts()
    assert parts is not None
    width = -(-VOCAB_SIZE // num_ranks)
    rows = [
        parts.head_rows(first, min(first + width, VOCAB_SIZE), torch.device("cpu"))[0]
        for first in range(0, VOCAB_SIZE, width)
    ]
    assert torch.equal(torch.cat(rows), model.get_output_embeddings().weight)
