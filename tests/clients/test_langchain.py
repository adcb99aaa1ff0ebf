"""langchain-openai: answers, streams, structured output and tools."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, SecretStr

langchain = pytest.importorskip("langchain_openai", reason="make clients")

from clients.helpers import MODEL, Server  # noqa: E402

pytestmark = pytest.mark.usefixtures("isolated")
PROMPT = "Name three primary colours."


class City(BaseModel):
    """A city."""

    # else the schema allows any number of properties more, and a small model writes them
    model_config = ConfigDict(extra="forbid")

    name: str
    inhabitants: int


@pytest.fixture
def chat(server: Server) -> Any:
    return langchain.ChatOpenAI(
        model=MODEL,
        base_url=f"{server.url}/v1",
        api_key=SecretStr("none"),
        temperature=0,
        max_completion_tokens=64,
        max_retries=0,
    )


def test_a_whole_answer(chat: Any, server: Server) -> None:
    answer = chat.invoke(PROMPT)
    assert answer.content == server.chat(PROMPT, max_tokens=64)
    assert answer.usage_metadata["output_tokens"] > 0


def test_a_stream(chat: Any, server: Server) -> None:
    assert "".join(chunk.content for chunk in chat.stream(PROMPT)) == server.chat(PROMPT, max_tokens=64)


def test_a_batch(chat: Any, server: Server) -> None:
    prompts = ["Say hello.", PROMPT]
    assert [answer.content for answer in chat.batch(prompts)] == [server.chat(one, max_tokens=64) for one in prompts]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output_is_an_object_of_the_class(chat: Any, method: str) -> None:
    found = chat.with_structured_output(City, method=method).invoke("Paris has 2 million inhabitants.")
    assert isinstance(found, City)


def test_a_tool_that_must_be_called_is(chat: Any) -> None:
    answer = chat.bind_tools([City], tool_choice="required").invoke("Tell me of Paris.")
    assert [call["name"] for call in answer.tool_calls][:1] == ["City"]
    City.model_validate(answer.tool_calls[0]["args"])
