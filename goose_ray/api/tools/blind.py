"""Conversations with tools for chat templates that have no place for them: tools, calls and results become text.

The text is in the Hermes format, which most models that were trained on tools at all have seen. Knows messages alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["without_tools"]

Message = Mapping[str, Any]

_INSTRUCTIONS = """\
You can call functions. These are the ones there are, each as a JSON object on a line of its own:
<tools>
{tools}
</tools>
To call one, answer with a JSON object of its name and its arguments between tags, once for every call:
<tool_call>
{{"name": "the function's name", "arguments": {{"an argument's name": "its value"}}}}
</tool_call>
Its result comes back between <tool_response> and </tool_response>. If no function is of use, answer as usual."""


def without_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, has_system_role: bool
) -> list[Message]:
    """The messages in roles and texts alone. Without a system role the instructions begin the first message."""
    plain = _plain(messages)
    if not tools:
        return plain
    instructions = _INSTRUCTIONS.format(tools="\n".join(_json(tool) for tool in tools))
    if plain and plain[0]["role"] == "system":
        first = {"role": "system", "content": f"{plain[0]['content']}\n\n{instructions}"}
        return [first, *plain[1:]]
    if has_system_role or not plain:
        return [{"role": "system", "content": instructions}, *plain]
    first = {**plain[0], "content": f"{instructions}\n\n{plain[0]['content']}"}
    return [first, *plain[1:]]


def _plain(messages: Sequence[Message]) -> list[Message]:
    """Results of calls made at once become one message: many templates want user and assistant to alternate."""
    plain: list[Message] = []
    follows_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if not is_result:
            plain.append(_with_calls_as_text(message))
        elif follows_result:
            content = f"{plain[-1]['content']}\n{_result(message)}"
            plain[-1] = {"role": "user", "content": content}
        else:
            plain.append({"role": "user", "content": _result(message)})
        follows_result = is_result
    return plain


def _with_calls_as_text(message: Message) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    texts = [message["content"]] if message["content"] else []
    return {"role": message["role"], "content": "\n".join((*texts, *map(_call, calls)))}


def _result(message: Message) -> str:
    return f"<tool_response>\n{message['content']}\n</tool_response>"


def _call(call: Mapping[str, Any]) -> str:
    function = call["function"]
    return f"<tool_call>\n{_json({'name': function['name'], 'arguments': function['arguments']})}\n</tool_call>"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
