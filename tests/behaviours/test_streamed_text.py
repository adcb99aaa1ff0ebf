"""Several tokens a step, and characters of several tokens: B19. What is streamed is what would have been sent whole."""

from typing import Any

import pytest
from engine_app import EngineApp
from engine_helpers import ScriptedSpeculator
from fakes import EOS, scripted_model
from logit_runner import LogitRunner
from scripted_engine import forced

from goose_ray.config import EMBEDDED_MODEL, EngineConfig
from goose_ray.engine.engine import Engine
from goose_ray.models.loader import resolve
from goose_ray.models.tokenizer import load_tokenizer

LENGTHS = (0, 1, 2, 3, 8)
# Characters of one to four bytes, joined ones, combining ones, and marks that are easily taken for something else.
TEXT = "héllo 😀 👩‍👩‍👧 你好 e\u0301 \u202e\ufeff\u2028 ﬁn"
PATHS = ("/v1/completions", "/v1/chat/completions")


def _body(path: str, **options: Any) -> dict[str, Any]:
    prompt = {"prompt": "Hi"} if path.endswith("/v1/completions") else {"messages": [{"role": "user", "content": "Hi"}]}
    return {**prompt, "temperature": 0, "max_tokens": 200, **options}


def check(app: EngineApp, path: str, **options: Any) -> str:
    """The text of each choice, which is also that of the stream; no chunk holds a part of a character."""
    body = _body(path, **options)
    is_chat = path == PATHS[1]
    choices = app.whole(path, **body)["choices"]
    texts = [choice["message"]["content"] if is_chat else choice["text"] for choice in choices]
    streamed = [""] * len(texts)
    reasons: list[Any] = [None] * len(texts)
    for event in app.streamed(path, **body):
        for choice in event["choices"]:
            part = choice["delta"].get("content", "") if is_chat else choice["text"]
            # No lone surrogates, and U+FFFD only where the whole text has it too.
            part.encode("utf-8", "strict")
            streamed[choice["index"]] += part
            assert texts[choice["index"]].startswith(streamed[choice["index"]])
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    assert streamed == texts
    assert reasons == [choice["finish_reason"] for choice in choices]
    assert len(set(texts)) == 1
    return str(texts[0])


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("path", PATHS)
def test_b19_bursts_of_byte_tokens(path: str, length: int) -> None:
    # rtp-llm 682, dynamo 12630
    with EngineApp.serving(forced([*TEXT.encode(), EOS], length=length)) as app:
        assert check(app, path) == TEXT
        assert check(app, path, n=3, logprobs=True if path == PATHS[1] else 1) == TEXT
        assert check(app, path, stop=["😀"]) == "héllo "
        assert check(app, path, stop=["‍👧"], include_stop_str_in_output=True) == TEXT[: TEXT.index("👧") + 1]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("path", PATHS)
def test_b19_an_answer_that_ends_inside_a_character(path: str, length: int) -> None:
    data = "a😀".encode()
    with EngineApp.serving(forced([*data, EOS], length=length)) as app:
        for max_tokens, text in ((1, "a"), (2, "a\ufffd"), (3, "a\ufffd"), (4, "a\ufffd"), (5, "a😀"), (6, "a😀")):
            assert check(app, path, max_tokens=max_tokens) == text
    with EngineApp.serving(forced([*data[:3], EOS], length=length)) as app:
        assert check(app, path) == "a\ufffd"
    # A token of text inside a character, and bytes that never are one.
    with EngineApp.serving(forced([*data[:3], 98, 0x80, 0xFF, 99, EOS], length=length)) as app:
        assert check(app, path) == bytes([*data[:3], 98, 0x80, 0xFF, 99]).decode(errors="replace")


@pytest.mark.parametrize("length", LENGTHS)
def test_b19_the_embedded_models_tokens(length: int) -> None:
    tokenizer = load_tokenizer(resolve(EMBEDDED_MODEL))
    ids = tokenizer.encode(TEXT)
    model = scripted_model([*ids, tokenizer.eos_token_ids[0]])
    engine = Engine(
        LogitRunner(model, vocab_size=tokenizer.vocab_size, num_slots=512, eos_token_ids=tokenizer.eos_token_ids),
        ScriptedSpeculator(model, length=length, vocab_size=tokenizer.vocab_size),
        tokenizer,
        EngineConfig(),
    )
    assert len(ids) > len(TEXT), "no character is of several tokens"
    with EngineApp.serving(engine) as app:
        assert check(app, PATHS[0]) == TEXT
        assert check(app, PATHS[1], stop=["好"]) == TEXT[: TEXT.index("好")]
