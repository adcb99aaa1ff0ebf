"""The tokenizer the server uses is the one in tokenizer.json, and refuses what the chat template refuses."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import tiny_llama, write_gguf

from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.errors import InvalidRequestError, ModelLoadError
from goose_ray.models import gguf
from goose_ray.models.embedded import pull_embedded
from goose_ray.models.tokenizer import load_tokenizer

PROMPT_LIMIT = 900


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    (tmp_path / "model").mkdir()
    gguf.convert(tmp_path / "tiny.gguf", tmp_path / "model", progress=False)
    return tmp_path / "model"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_it_is_what_the_engine_asks_for(directory: Path) -> None:
    tokenizer: Tokenizer = load_tokenizer(directory)
    assert tokenizer.decode(tokenizer.encode("th")) == "th"


def test_a_tokenizer_class_with_its_own_pre_tokenizer_does_not_win(directory: Path) -> None:
    expected = load_tokenizer(directory).encode("12")
    edit(directory / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    assert len(expected) == 2
    assert load_tokenizer(directory).encode("12") == expected


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [([2, 0], 1, (2, 0)), (0, 1, (0,)), (None, 1, (1,)), (None, None, (2,))],
)
def test_eos_ids_come_from_the_nearest_to_generation(
    directory: Path, generation: Any, config: Any, expected: tuple[int, ...]
) -> None:
    edit(directory / "generation_config.json", eos_token_id=generation)
    edit(directory / "config.json", eos_token_id=config)
    assert load_tokenizer(directory).eos_token_ids == expected


def test_without_generation_config(directory: Path) -> None:
    (directory / "generation_config.json").unlink()
    assert load_tokenizer(directory).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("template", "messages", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", [{"role": "user", "content": "a"}], "roles must alternate"),
        ("{% for m in messages %}{{ 'x' + m['content'] }}{% endfor %}", [{"role": "a", "content": None}], "refuses"),
        ("", [{"role": "user", "content": "a"}], "no chat template"),
    ],
)
def test_a_refusing_chat_template_is_the_requests_fault(
    directory: Path, template: str, messages: list[dict[str, Any]], says: str
) -> None:
    (directory / "chat_template.jinja").write_text(template)
    with pytest.raises(InvalidRequestError, match=says) as caught:
        load_tokenizer(directory).apply_chat_template(messages)
    assert caught.value.param == "messages"


def test_options_reach_the_template_and_none_that_is_more_than_a_variable(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ 'on' if enable_thinking else 'off' }}")
    tokenizer = load_tokenizer(directory)
    message = [{"role": "user", "content": "a"}]
    assert tokenizer.decode(tokenizer.apply_chat_template(message, options={"enable_thinking": True})) == "on"
    assert tokenizer.decode(tokenizer.apply_chat_template(message)) == "off"
    for name in ("chat_template", "messages", "conversation", "tools", "tokenize", "add_generation_prompt", "a b"):
        with pytest.raises(InvalidRequestError, match=name) as refused:
            tokenizer.apply_chat_template(message, options={name: "{{ 1 }}"})
        assert refused.value.param == "chat_template_kwargs"


def test_tools_reach_the_template(directory: Path) -> None:
    (directory / "chat_template.jinja").write_text("{{ tools | length if tools else 'none' }}")
    tokenizer = load_tokenizer(directory)
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    message = [{"role": "user", "content": "a"}]
    assert tokenizer.decode(tokenizer.apply_chat_template(message, tools=[tool, tool])) == "2"
    assert tokenizer.decode(tokenizer.apply_chat_template(message)) == "none"


def test_a_directory_without_tokenizer_is_refused(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).unlink()
    with pytest.raises(ModelLoadError, match="tokenizer"):
        load_tokenizer(directory)


def test_many_threads_at_once() -> None:
    tokenizer = load_tokenizer(pull_embedded())
    texts = [f"thread {i}: " + "word " * (i % 7) for i in range(200)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda text: tokenizer.decode(tokenizer.encode(text)), texts)) == texts


def test_prompts_are_those_recorded_elsewhere(shared_dir: Path) -> None:
    """32 chat prompts, digits and code and prose, encoded by another conversion of the same model."""
    tokenizer = load_tokenizer(pull_embedded())
    compared = 0
    for file in sorted((shared_dir / "data" / "prompts").glob("*.jsonl")):
        for row in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
            recording = shared_dir / "data" / "recordings" / f"{file.stem}_{row['id'].replace('/', '_')}.npz"
            if recording.is_file():
                text = row["prompt"] if "prompt" in row else row["turns"][0]
                ids = tokenizer.apply_chat_template([{"role": "user", "content": text}])
                assert ids[:PROMPT_LIMIT] == np.load(recording)["prompt"].tolist(), recording.name
                compared += 1
    assert compared == 32
