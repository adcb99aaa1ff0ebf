"""What a line of a prompt file asks for, turn by turn, and how it is fitted into the context."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FakeTokenizer

from goose_ray.bench.prompts import Conversation, Dialogue, EncodedPrompt, encode, read_prompt_files, read_prompts
from goose_ray.errors import ConfigError


class ChatTokenizer(FakeTokenizer):
    """One byte a token; a message is its role's first letter, its content and a bar."""

    def apply_chat_template(
        self,
        messages: Sequence[Any],
        *,
        tools: Sequence[object] | None = None,
        options: object = None,
        max_tokens: int | None = None,
    ) -> list[int]:
        head = f"t{len(tools)}|" if tools else ""
        return self.encode(head + "".join(f"{message['role'][0]}{message['content']}|" for message in messages))


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def text_of(dialogue: Dialogue, *replies: str, limit: int = 1000, chat: bool = False) -> str | None:
    prompt = dialogue.prompt_after(replies, ChatTokenizer(), chat, limit)
    return None if prompt is None else bytes(prompt.token_ids).decode()


def test_the_file_is_the_benchmark(tmp_path: Path) -> None:
    path = write(tmp_path / "gsm8k.jsonl", *({"id": f"q{i}", "prompt": "x"} for i in range(5)))
    assert read_prompts(path).name == "gsm8k"
    assert [dialogue.dialogue_id for dialogue in read_prompts(path, limit=2).dialogues] == ["q0", "q1"]


def test_a_raw_prompt_is_sent_once_raw_or_as_a_user_turn() -> None:
    dialogue = Dialogue("d", prompt="def f():")
    assert text_of(dialogue) == "def f():"
    assert text_of(dialogue, chat=True) == "udef f():|"
    assert text_of(dialogue, "reply") is None
    assert dialogue.num_requests == 1


def test_turns_are_answered_by_the_model_in_turn() -> None:
    dialogue = Dialogue("d", turns=("one", "two"))
    assert text_of(dialogue) == "uone|"
    assert text_of(dialogue, "ONE") == "uone|aONE|utwo|"
    assert text_of(dialogue, "ONE", "TWO") is None
    assert dialogue.num_requests == 2


def recorded(*roles: str) -> tuple[dict[str, str], ...]:
    return tuple({"role": role, "content": str(i)} for i, role in enumerate(roles))


def test_a_recorded_conversation_is_sent_up_to_each_reply_with_the_recorded_history() -> None:
    dialogue = Dialogue("d", messages=recorded("system", "user", "assistant", "user", "assistant"))
    assert text_of(dialogue) == "s0|u1|"
    assert text_of(dialogue, "the model's own") == "s0|u1|a2|u3|"
    assert text_of(dialogue, "a", "b") is None
    assert dialogue.num_requests == 2


def test_a_conversation_that_ends_open_is_answered_at_its_end_with_its_tools() -> None:
    dialogue = Dialogue("d", messages=recorded("user"), tools=({"name": "f"}, {"name": "g"}))
    assert text_of(dialogue) == "t2|u0|"
    assert dialogue.num_requests == 1


def test_a_reply_with_nothing_before_it_is_not_asked_for() -> None:
    assert Dialogue("d", messages=recorded("assistant", "user", "assistant")).num_requests == 1


def test_a_long_raw_prompt_loses_its_middle() -> None:
    prompt = encode("abcdefghij", ChatTokenizer(), 5)
    assert prompt == EncodedPrompt(tuple(b"abhij"), cut=True)
    assert encode("abcde", ChatTokenizer(), 5) == EncodedPrompt(tuple(b"abcde"), cut=False)


def test_a_long_conversation_loses_its_oldest_middle_messages_first() -> None:
    conversation = Conversation(recorded("system", "user", "assistant", "user", "assistant", "user"))
    prompt = encode(conversation, ChatTokenizer(), 12)
    assert bytes(prompt.token_ids) == b"s0|u1|a4|u5|"
    assert prompt.cut


def test_messages_too_long_by_themselves_lose_their_middle() -> None:
    conversation = Conversation(({"role": "user", "content": "abcdefgh"}, {"role": "user", "content": "i"}))
    prompt = encode(conversation, ChatTokenizer(), 7)
    assert bytes(prompt.token_ids) == b"uabh|ui|"[:3] + b"|ui|"
    assert prompt.cut


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"id": "a"}\n', "1 holds none of prompt, turns and messages"),
        ('{"id": "a", "prompt": "x"}\n{oops\n', "2 is no JSON"),
        ("[1]\n", "holds none"),
        ("\n\n", "holds no line"),
        ('{"prompt": "x"}\n', "has no id"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "bad.jsonl").write_text(content)
    with pytest.raises(ConfigError, match=rf"bad\.jsonl.*{says}"):
        read_prompts(tmp_path / "bad.jsonl")


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [write(folder / "same.jsonl", {"id": "1", "prompt": "x"}) for folder in (tmp_path, tmp_path / "other")]
    with pytest.raises(ConfigError, match="'same'"):
        read_prompt_files(paths)


def test_every_shared_prompt_file_can_be_read(shared_dir: Path) -> None:
    files = read_prompt_files(sorted((shared_dir / "data" / "prompts").glob("*.jsonl")))
    requests = {file.name: sum(dialogue.num_requests for dialogue in file.dialogues) for file in files}
    assert requests["gsm8k"] == 40
    assert requests["mt_bench"] == 80
    assert requests["bfcl"] == 30
    assert requests["agentic_sessions"] == 68


def test_what_is_no_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"some\.jsonl is no UTF-8"):
        read_prompts(path)


def test_a_line_ends_where_jsons_does(tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    path.write_bytes('{"id": "1", "prompt": "a\u2028b\x85c"}\r\n{"id": "2", "prompt": "d"}\n'.encode())
    dialogues = read_prompts(path).dialogues
    assert [text_of(dialogue) for dialogue in dialogues] == ["a\u2028b\x85c", "d"]
