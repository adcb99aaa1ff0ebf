"""Chat templates as models have them, in little, over the embedded model's tokenizer and a few special tokens."""

from functools import cache

from transformers import PreTrainedTokenizerFast

from goose_ray.config import EMBEDDED_MODEL
from goose_ray.models.loader import resolve
from goose_ray.models.tokenizer import HFTokenizer

__all__ = ["BLIND", "HERMES", "LLAMA", "MISTRAL", "THINKS", "THINKS_AT_ONCE", "XML", "tokenizer_with"]

_TURNS = """\
{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>
{% endfor %}"""
# as Qwen's and Hermes'
HERMES = (
    "{% if tools %}{% for t in tools %}{{ t | tojson }}\n{% endfor %}Call so: <tool_call>\n"
    '{{ \'{"name": <name>, "arguments": <object>}\' }}\n</tool_call>\n{% endif %}'
    + _TURNS.replace(
        "CALL",
        '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}</tool_call>',
    )
)
# as Llama 3.1's: no word of a tag
LLAMA = (
    '{% if tools %}Respond in the format {{ \'{"name": function name, "parameters": dictionary of arguments}\' }}\n'
    "{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
    + _TURNS.replace("CALL", '{"name": "{{ c.function.name }}", "parameters": {{ c.function.arguments | tojson }}}')
)
# as Mistral's: tools before the last user's turn, ids of nine characters
MISTRAL = """\
{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}\
[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}\
{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}\
[TOOL_RESULTS]{{ m.tool_call_id }}:{{ m.content }}[/TOOL_RESULTS]{% elif m.tool_calls is defined %}[TOOL_CALLS]\
{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}\
{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{{ c.id }}{% endfor %}{% else %}{{ m.content }}\
{% endif %}{% endfor %}"""
# tags like Hermes', and no JSON between them
XML = (
    "{% if tools %}{{ tools | tojson }}<tool_call><function=name><parameter=p>v</parameter></tool_call>{% endif %}"
    + (_TURNS.replace("CALL", ""))
)
BLIND = _TURNS.replace("CALL", "")
# as Qwen3's: thinking is left to the model, or closed before it has begun
_OFF = "enable_thinking is defined and not enable_thinking"
_THINKS = (
    _TURNS.replace("CALL", "").replace(
        "{{ m.content }}",
        "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}",
    )
    + "<|im_start|>assistant\n{% if "
    + _OFF
    + " %}<think>\n\n</think>\n\nOPENED{% endif %}"
)
THINKS = _THINKS.replace("OPENED", "")
# as DeepSeek-R1's: it is begun for the model
THINKS_AT_ONCE = _THINKS.replace("OPENED", "{% else %}<think>\n")


@cache
def tokenizer_with(template: str, *, specials: tuple[str, ...] = ()) -> HFTokenizer:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(resolve(EMBEDDED_MODEL), local_files_only=True)
    tokenizer.add_special_tokens({"additional_special_tokens": list(specials)}, replace_extra_special_tokens=False)
    tokenizer.chat_template = template
    return HFTokenizer(tokenizer, (tokenizer.eos_token_id,))
