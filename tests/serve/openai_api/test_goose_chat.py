"""`goose chat` over a real server."""

import json

from click.testing import CliRunner

from goose_ray.cli.chat_client import ChatClient, Progress
from goose_ray.cli.main import main
from serve.helpers import MODEL, Server

PROMPT = "Name three primary colours."


def test_it_says_what_the_model_says_and_counts_what_the_server_counts(server: Server) -> None:
    options = ["--base-url", server.url, "--temperature", "0", "--max-tokens", "24"]
    result = CliRunner().invoke(main, ["chat", *options, "--json", PROMPT])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["content"] == server.chat(PROMPT, max_tokens=24)["choices"][0]["message"]["content"]
    assert told["usage"]["completion_tokens"] == told["goose"]["committed"] > 0
    assert told["tau"] == told["goose"]["tau"] >= 1


def test_tokens_and_steps_are_counted_on_the_way_as_at_the_end(server: Server) -> None:
    """A chunk is a step: what is shown live is what the server says in the end."""
    progress = Progress()
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 24}
    assert "".join(piece.text for piece in ChatClient(server.url, None).stream(body, progress))
    assert progress.goose is not None
    assert (progress.tokens, progress.steps) == (progress.goose["committed"], progress.goose["steps"])
