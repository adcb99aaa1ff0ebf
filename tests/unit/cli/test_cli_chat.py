"""`goose chat` against a server that says what it is told to, over real HTTP; tests/serve has it against a real one."""

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from goose_ray.cli.main import main
from goose_ray.cli.status_line import printable

GOOSE = {"steps": 2, "drafted": 4, "accepted": 3, "committed": 5, "tau": 2.5, "sources": {}}
_PATIENCE_S = 30.0


def chunk(text: str, token_ids: Sequence[int], finish_reason: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"content": text}, "token_ids": [*token_ids], "finish_reason": finish_reason}
    return {"object": "chat.completion.chunk", "choices": [choice], **more}


USAGE = {"object": "chat.completion.chunk", "choices": [], "usage": {"completion_tokens": 5}}
ANSWER = [chunk("Hello ", (1, 2)), chunk("world", (3, 4, 5), "stop", goose=GOOSE), USAGE]


@dataclass(slots=True)
class Server:
    """Answers each chat with the next of `answers`: events, or a status with a body."""

    answers: list[list[dict[str, Any]] | tuple[int, dict[str, Any]]]
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    script = Server([ANSWER])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/v1/models"
            self.reply(200, json.dumps({"data": [{"id": "tiny"}]}).encode())

        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            script.asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            script.keys.append(self.headers["Authorization"])
            answer = script.answers.pop(0)
            if isinstance(answer, tuple):
                self.reply(answer[0], json.dumps(answer[1]).encode())
            else:
                events = [*(json.dumps(event) for event in answer), "[DONE]"]
                self.reply(200, "".join(f"data: {event}\n\n" for event in events).encode())

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    script.url = f"http://127.0.0.1:{http.server_port}"
    yield script
    http.shutdown()
    http.server_close()


def chat(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["chat", *arguments], input=stdin)


def test_the_answer_is_on_standard_output_and_its_speed_on_the_other(server: Server) -> None:
    result = chat("--base-url", server.url, "Say", "hello.")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Hello world\n"
    assert "tau 2.50" in result.stderr
    assert "5 tokens" in result.stderr
    (asked,) = server.asked
    assert (asked["model"], asked["stream"]) == ("tiny", True)
    assert asked["messages"] == [{"role": "user", "content": "Say hello."}]
    assert server.keys == [None]


def test_options_reach_the_request(server: Server) -> None:
    options = ("--model", "m", "--system", "Be brief.", "--max-tokens", "9", "--temperature", "0", "--seed", "3")
    assert chat("--base-url", f"{server.url}/v1/", *options, "--policy", "chain", "Hi").exit_code == 0
    (asked,) = server.asked
    assert asked["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (asked["model"], asked["max_tokens"], asked["temperature"], asked["seed"]) == ("m", 9, 0, 3)
    assert asked["goose"] == {"policy": "chain"}


def test_the_key_comes_from_the_environment_or_the_option(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    server.answers = [ANSWER, ANSWER]
    assert chat("--base-url", server.url, "Hi").exit_code == 0
    assert chat("--base-url", server.url, "--api-key", "given", "Hi").exit_code == 0
    assert server.keys == ["Bearer from-environment", "Bearer given"]


def test_standard_input_is_a_message(server: Server) -> None:
    assert chat("--base-url", server.url, stdin="a question\n").stdout == "Hello world\n"
    assert server.asked[0]["messages"][-1]["content"] == "a question"


def test_nothing_to_say_is_a_wrong_command_line(server: Server) -> None:
    assert chat("--base-url", server.url, stdin="").exit_code == 2


def test_as_json_there_is_one_object(server: Server) -> None:
    told = json.loads(chat("--base-url", server.url, "--json", "Hi").stdout)
    assert (told["content"], told["finish_reason"], told["model"]) == ("Hello world", "stop", "tiny")
    assert told["usage"] == {"completion_tokens": 5}
    assert told["goose"]["tau"] == told["tau"] == 2.5
    assert 0 <= told["first_token_s"] <= told["seconds"]
    assert told["tokens_per_s"] == pytest.approx(5 / told["seconds"])


def test_an_answer_of_one_step_has_a_speed(server: Server) -> None:
    server.answers = [[chunk("Hello world", (1, 2, 3, 4, 5), "stop", goose=GOOSE)]]
    told = json.loads(chat("--base-url", server.url, "--json", "Hi").stdout)
    assert told["tokens_per_s"] == pytest.approx(5 / told["seconds"])


def test_thinking_is_no_part_of_the_answer(server: Server) -> None:
    thinking = chunk("", (6,))
    thinking["choices"][0]["delta"] = {"reasoning": "Hm.", "reasoning_content": "Hm."}
    server.answers = [[thinking, *ANSWER]] * 2
    assert chat("--base-url", server.url, "Hi").stdout == "Hello world\n"
    told = json.loads(chat("--base-url", server.url, "--json", "Hi").stdout)
    assert (told["reasoning"], told["content"]) == ("Hm.", "Hello world")


def test_tau_is_counted_where_the_server_does_not_tell_it(server: Server) -> None:
    server.answers = [[chunk("a", (1,)), chunk("", ()), chunk("bcd", (2, 3, 4), "length")]]
    result = chat("--base-url", server.url, "--json", "Hi")
    assert json.loads(result.stdout)["tau"] == 2.0


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, {"error": {"message": "no such key"}}), "no such key; give a key with --api-key or OPENAI_API_KEY"),
        ((500, {}), "answers 500"),
        ([chunk("Hel", (1,)), {"error": {"message": "the engine died"}}], "the engine died"),
    ],
)
def test_what_the_server_refuses_is_told_and_fails(server: Server, answer: Any, said: str) -> None:
    server.answers = [answer]
    result = chat("--base-url", server.url, "Hi")
    assert result.exit_code == 1
    assert said in result.stderr


def test_a_server_that_is_not_there_is_told() -> None:
    result = chat("--base-url", "http://127.0.0.1:9", "Hi")
    assert result.exit_code == 1
    assert "goose serve" in result.stderr


def test_an_address_must_be_one_of_the_web() -> None:
    assert chat("--base-url", "file:///etc/passwd", "Hi").exit_code == 2


def test_what_would_move_the_cursor_is_left_out() -> None:
    assert printable("a\x1b[2Jb\tc\nd\r\x07\x9b1me é 鹅") == "a[2Jb\tc\nd1me é 鹅"


def test_a_dialogue_in_a_terminal(server: Server) -> None:
    """Turns are remembered, `/new` forgets them, the model cannot move the cursor, and tau is at the foot. What it
    thinks is seen, and not remembered.
    """
    thinking = chunk("", (6,))
    thinking["choices"][0]["delta"] = {"reasoning": "Hm.\x1b[A"}
    server.answers = [
        [thinking, chunk("one\x1b[2J", (1, 2, 3), "stop", goose=GOOSE)],
        [chunk("two", (4,), "stop", goose=GOOSE)],
        [chunk("three", (5,), "stop", goose=GOOSE)],
    ]
    ours, theirs = pty.openpty()
    command = [str(Path(sys.executable).with_name("goose")), "chat", "--base-url", server.url]
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    ) as process:
        os.close(theirs)
        seen = ""

        def wait_for(text: str, *, times: int = 1) -> None:
            nonlocal seen
            deadline = time.monotonic() + _PATIENCE_S
            while seen.count(text) < times:
                ready, _, _ = select.select([ours], [], [], max(0.0, deadline - time.monotonic()))
                assert ready, f"no {text!r} in {seen!r}"
                seen += os.read(ours, 4096).decode(errors="replace")

        for number, line in enumerate(("first", "second", "/new", "third", "/quit"), start=1):
            wait_for("> ", times=number)
            os.write(ours, f"{line}\n".encode())
        assert process.wait(_PATIENCE_S) == 0
    os.close(ours)
    assert [[turn["content"] for turn in asked["messages"]] for asked in server.asked] == [
        ["first"],
        ["first", "one\x1b[2J", "second"],
        ["third"],
    ]
    assert "one[2J" in seen
    assert "\x1b[2mHm.[A\x1b[0m" in seen
    assert "one\x1b[2J" not in seen
    assert "tau 2.50" in seen
