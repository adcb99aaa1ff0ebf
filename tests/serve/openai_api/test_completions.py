"""Text completions, and many requests at once."""

import asyncio

import openai

from serve.helpers import MODEL, Server, async_client
from serve.openai_api.events import stream

# what the model goes on copying: characters of four bytes in three tokens each, between letters of one
FACES = "a😀b😀a😀b😀a😀b😀a😀b😀a😀"


class TestCompletions:
    def test_prompts_as_text_and_as_ids(self, server: Server, client: openai.OpenAI) -> None:
        text = "One, two, three, four,"
        first = client.completions.create(
            model=MODEL, prompt=text, temperature=0, max_tokens=8, extra_body={"return_token_ids": True}
        )
        ids = (first.choices[0].model_extra or {})["prompt_token_ids"]
        several = client.completions.create(model=MODEL, prompt=[ids, ids], temperature=0, max_tokens=8)
        assert [choice.text for choice in several.choices] == [first.choices[0].text] * 2
        assert [choice.index for choice in several.choices] == [0, 1]
        assert first.usage is not None
        assert several.usage is not None
        assert several.usage.prompt_tokens == 2 * len(ids) == 2 * first.usage.prompt_tokens

    def test_characters_of_several_tokens_are_streamed_whole(self, server: Server) -> None:
        body = {"prompt": FACES, "temperature": 0, "max_tokens": 24}
        whole = server.http.post("/v1/completions", json={"model": MODEL, **body}).json()["choices"][0]["text"]
        parts = [event["choices"][0]["text"] for event in stream(server, "/v1/completions", body)]
        assert "".join(parts) == whole
        assert any(ord(character) > 0xFFFF for character in whole), "the model did not go on with the faces"
        assert not any("\ufffd" in part for part in parts[:-1])

    def test_sixteen_tokens_by_default(self, server: Server) -> None:
        body = {"model": MODEL, "prompt": "A B C D", "temperature": 0, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body).json()["usage"]["completion_tokens"] == 16


class TestBatch:
    def test_trees_of_several_sequences_share_a_forward_with_a_prefill(self, server: Server) -> None:
        async def load() -> None:
            async with async_client(server) as client:
                await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            model=MODEL,
                            # prompts of different lengths, so that some are still computed when others decode
                            messages=[{"role": "user", "content": "Count slowly. " * (1 + 20 * number)}],
                            temperature=0,
                            max_tokens=16,
                            extra_body={"ignore_eos": True, "goose": {"policy": "goose"}},
                        )
                        for number in range(8)
                    )
                )

        asyncio.run(load())
        (replica,) = server.get("/v1/goose/steps?last=128")["replicas"]
        steps = replica["steps"]
        assert all(
            step["rows"] == sum(part["prefill_rows"] + part["tree_nodes"] for part in step["sequences"])
            for step in steps
        ), "a forward had rows that belong to no sequence"
        mixed = [
            step
            for step in steps
            if sum(part["tree_nodes"] > 1 for part in step["sequences"]) >= 3
            and any(part["prefill_rows"] for part in step["sequences"])
        ]
        assert mixed, "no forward held three trees and a prefill"

    def test_eight_at_once_say_what_each_says_alone(self, server: Server) -> None:
        questions = [f"What is {number} plus {number}?" for number in range(8)]
        alone = [server.chat(question, max_tokens=12)["choices"][0]["message"]["content"] for question in questions]

        async def together() -> list[str | None]:
            async with async_client(server) as client:
                answers = await asyncio.gather(
                    *(
                        client.chat.completions.create(
                            model=MODEL, messages=[{"role": "user", "content": q}], temperature=0, max_tokens=12
                        )
                        for q in questions
                    )
                )
            return [answer.choices[0].message.content for answer in answers]

        assert asyncio.run(together()) == alone
