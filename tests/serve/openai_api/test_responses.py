"""`/v1/responses`, `/tokenize` and `/detokenize` of a running application; responses through the `openai` client."""

import json
from typing import Any

import openai

from serve.helpers import MODEL, Server

QUESTION = "What is the capital of France?"


def test_a_response_is_a_chat_in_other_words(client: openai.OpenAI, server: Server) -> None:
    chat = server.chat(QUESTION, max_tokens=24)
    request: dict[str, Any] = {"model": MODEL, "input": QUESTION, "temperature": 0, "max_output_tokens": 24}
    whole = client.responses.create(**request)
    assert whole.output_text == chat["choices"][0]["message"]["content"]
    assert whole.status == "completed"
    assert whole.usage is not None
    assert whole.usage.total_tokens == chat["usage"]["total_tokens"]
    *_, last = client.responses.create(**request, stream=True)
    assert last.type == "response.completed"
    assert last.response.output_text == whole.output_text


def test_a_shape_holds_in_responses_too(client: openai.OpenAI) -> None:
    properties = {"a": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["a"], "additionalProperties": False}
    shape: Any = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    answer = client.responses.create(model=MODEL, input="Yes?", temperature=0, max_output_tokens=40, text=shape)
    assert isinstance(json.loads(answer.output_text)["a"], bool)


def test_tokens_of_a_text_and_back(server: Server) -> None:
    def asked(path: str, **body: Any) -> Any:
        response = server.http.post(path, json=body)
        assert response.status_code == 200, response.text
        return response.json()

    text = "Ducks: 1234, é and 🦆"
    told = asked("/tokenize", prompt=text, return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"])
    assert asked("/detokenize", tokens=told["tokens"]) == {"prompt": text}
    messages = [{"role": "user", "content": QUESTION}]
    prompt = asked("/tokenize", messages=messages)["tokens"]
    assert "<|im_start|>user" in asked("/detokenize", tokens=prompt)["prompt"]
    assert server.chat(QUESTION, max_tokens=1, return_token_ids=True)["prompt_token_ids"] == prompt
    assert server.http.post("/detokenize", json={"tokens": [10**6]}).status_code == 400
