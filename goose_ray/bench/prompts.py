"""Prompt files: JSON lines of raw prompts, conversations to hold, and conversations on record.

One object a line, with `id` and one of `prompt` (raw text), `turns` (user turns that the model answers in turn) or
`messages` (a recorded conversation, with `tools` if it has any). Knows nothing about how replies are made.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.errors import ConfigError

__all__ = [
    "CALIBRATION_PROMPTS",
    "Conversation",
    "Dialogue",
    "EncodedPrompt",
    "PromptFile",
    "encode",
    "read_prompt_files",
    "read_prompts",
]

Message = dict[str, Any]

# Written for this project, of many kinds. The prior of `anisotropic` is fitted on replies to them.
CALIBRATION_PROMPTS = Path(str(files("goose_ray.bench") / "data" / "calibration_prompts.jsonl"))


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Tokens to send. `cut` says that the prompt was too long and lost its middle."""

    token_ids: tuple[int, ...]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Conversation:
    """What a chat template is applied to."""

    messages: tuple[Message, ...]
    tools: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One line of a prompt file: requests that follow one another."""

    dialogue_id: str
    prompt: str | None = None
    turns: tuple[str, ...] = ()
    messages: tuple[Message, ...] = ()
    tools: tuple[Message, ...] = ()

    def prompt_after(
        self, replies: Sequence[str], tokenizer: Tokenizer, chat: bool, limit: int
    ) -> EncodedPrompt | None:
        """The tokens of `request_after`, at most `limit` of them."""
        request = self.request_after(replies, chat=chat)
        return None if request is None else encode(request, tokenizer, limit)

    def request_after(self, replies: Sequence[str], *, chat: bool) -> str | Conversation | None:
        """What to send after the replies so far; None when the dialogue is over.

        A raw prompt is sent as text, or in the chat template if `chat`. A recorded conversation is sent up to each of
        its assistant messages in turn; the recorded reply, not the model's, is then its history.
        """
        if self.prompt is not None:
            if replies:
                return None
            return Conversation(({"role": "user", "content": self.prompt},)) if chat else self.prompt
        if self.turns:
            return self._after_turns(replies)
        return self._up_to_reply(len(replies))

    @property
    def num_requests(self) -> int:
        if self.prompt is not None:
            return 1
        return len(self.turns) if self.turns else len(list(self._reply_places()))

    def _after_turns(self, replies: Sequence[str]) -> Conversation | None:
        if len(replies) == len(self.turns):
            return None
        messages: list[Message] = []
        for turn, reply in zip(self.turns, replies, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
        return Conversation((*messages, {"role": "user", "content": self.turns[len(replies)]}))

    def _up_to_reply(self, number: int) -> Conversation | None:
        places = list(self._reply_places())
        return Conversation(self.messages[: places[number]], self.tools) if number < len(places) else None

    def _reply_places(self) -> Iterator[int]:
        """Where the model is to reply: at each assistant message with something before it, and at an open end."""
        for place, message in enumerate(self.messages):
            if message["role"] == "assistant" and place > 0:
                yield place
        if self.messages and self.messages[-1]["role"] != "assistant":
            yield len(self.messages)


@dataclass(frozen=True, slots=True)
class PromptFile:
    """`name`, the benchmark's, is the file's name without its suffix."""

    name: str
    dialogues: tuple[Dialogue, ...]


def read_prompt_files(paths: Sequence[Path], *, limit: int | None = None) -> list[PromptFile]:
    """The first `limit` lines of each file. Raises ConfigError if one cannot be read or two have the same name."""
    files = [read_prompts(path, limit=limit) for path in paths]
    names = [file.name for file in files]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two prompt files are named {name!r}; the name is the benchmark's, rename one")
    return files


def read_prompts(path: Path, *, limit: int | None = None) -> PromptFile:
    """The first `limit` lines of a prompt file. Raises ConfigError naming the line that cannot be read."""
    try:
        # not splitlines(), which splits within JSON's strings too: U+2028 may stand there as it is
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ConfigError(f"prompts {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"prompts {path} is no UTF-8: {error}") from error
    wanted = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()][:limit]
    if not wanted:
        raise ConfigError(f"prompts {path} holds no line")
    return PromptFile(path.stem, tuple(_dialogue(line, f"{path}:{number}") for number, line in wanted))


def encode(request: str | Conversation, tokenizer: Tokenizer, limit: int) -> EncodedPrompt:
    """The request's tokens, at most `limit` of them."""
    if isinstance(request, str):
        return _cut_middle(tokenizer.encode(request), limit)
    return _encode_conversation(request, tokenizer, limit)


def _encode_conversation(conversation: Conversation, tokenizer: Tokenizer, limit: int) -> EncodedPrompt:
    """Where it is too long, the oldest messages after the first user message go, then the middle of what is left."""
    messages, tools = list(conversation.messages), conversation.tools or None
    num_kept = 1 + next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    ids = tokenizer.apply_chat_template(messages, tools=tools)
    cut = len(ids) > limit
    while len(ids) > limit and len(messages) > num_kept + 1:
        del messages[num_kept]
        ids = tokenizer.apply_chat_template(messages, tools=tools)
    return EncodedPrompt(_cut_middle(ids, limit).token_ids, cut)


def _cut_middle(ids: Sequence[int], limit: int) -> EncodedPrompt:
    """The beginning and the end stay: instructions stand at the one, the question at the other."""
    if len(ids) <= limit:
        return EncodedPrompt(tuple(ids))
    head = limit // 2
    return EncodedPrompt((*ids[:head], *ids[len(ids) - (limit - head) :]), cut=True)


def _dialogue(line: str, where: str) -> Dialogue:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"{where} is no JSON: {error}") from error
    if not isinstance(row, dict) or not any(row.get(key) for key in ("prompt", "turns", "messages")):
        raise ConfigError(f"{where} holds none of prompt, turns and messages")
    if row.get("id") is None:
        raise ConfigError(f"{where} has no id")
    return Dialogue(
        dialogue_id=str(row["id"]),
        prompt=row.get("prompt"),
        turns=tuple(row.get("turns", ())),
        messages=tuple(row.get("messages", ())),
        tools=tuple(row.get("tools", ())),
    )
