"""What a router knows a prompt by: hashes of its beginnings.

A block is a run of bytes of the prompt as it was sent: 60 tokens of plain English, 100 of code and figures; there is no
tokenizer here. A hash covers everything up to the end of its block and the request's `cache_salt`, so prompts of
different salts have none in common. The hashes are the same in every process. Knows calls; knows no replicas.
"""

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from goose_ray.api.calls import ChatPrompt, GenerateCall

__all__ = ["BLOCK_BYTES", "PromptKey", "blocks_of", "prompt_key"]

BLOCK_BYTES = 256
_BLOCK_TOKENS = 80
# What lies behind so many (about 130,000 tokens) tells no prompts apart that are not told apart already.
_MAX_BLOCKS = 2048


@dataclass(frozen=True, slots=True)
class PromptKey:
    # hash of the prompt up to the end of each whole block
    blocks: tuple[int, ...] = ()
    # hash of what all prompts of one conversation begin with
    head: int = 0
    # how many of the blocks were in the conversation's last request already
    past: int = 0


def blocks_of(num_tokens: int) -> int:
    """About how many blocks so many tokens of text are, at least one."""
    return max(1, num_tokens // _BLOCK_TOKENS)


def prompt_key(call: GenerateCall) -> PromptKey:
    """The head of a conversation ends with its first message of a user, that of another prompt with its first block."""
    prompt = call.prompt
    parts = _parts(prompt)
    text = b"".join(parts)[: _MAX_BLOCKS * BLOCK_BYTES]
    head, past = text[:BLOCK_BYTES], 0
    if isinstance(prompt, ChatPrompt):
        roles = [message.get("role") for message in prompt.messages]
        head = b"".join(parts[: 2 + roles.index("user")] if "user" in roles else parts)
        if "assistant" in roles:
            # the tools, and the messages before the last reply
            past = len(b"".join(parts[: len(roles) - roles[::-1].index("assistant")])) // BLOCK_BYTES
    salted = blake2b(json.dumps([call.cache_salt]).encode(), digest_size=8)
    of_head = salted.copy()
    of_head.update(head)
    blocks = []
    for end in range(BLOCK_BYTES, len(text) + 1, BLOCK_BYTES):
        salted.update(text[end - BLOCK_BYTES : end])
        blocks.append(_number(salted.digest()))
    return PromptKey(tuple(blocks), _number(of_head.digest()), min(past, len(blocks)))


def _parts(prompt: ChatPrompt | str | tuple[int, ...]) -> list[bytes]:
    """Bytes that grow at their end alone when a conversation goes on; templates put tools first. Of a conversation the
    tools, then a part for each message.
    """
    if isinstance(prompt, str):
        return [prompt.encode("utf-8", "surrogatepass")]
    if isinstance(prompt, tuple):
        return [_json(prompt)]
    return [_json(prompt.tools), *map(_json, prompt.messages)]


def _json(value: Any) -> bytes:
    # `default`: mappings that are no dicts
    return json.dumps(value, default=dict).encode()


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "big")
