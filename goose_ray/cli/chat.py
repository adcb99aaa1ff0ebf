"""`goose chat`: talk to a server, and see what speculation gives while it answers."""

import json
import sys
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import click

from goose_ray.cli.chat_client import ChatClient, Piece, Progress
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.options import api_key_option
from goose_ray.cli.status_line import StatusLine

__all__ = ["chat"]

_HELP = "/new forgets the dialogue, /quit or Ctrl-D ends it; Ctrl-C stops an answer."


@click.command()
@click.argument("message", nargs=-1, metavar="[MESSAGE]...")
@click.option(
    "--base-url",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    help="Address of the server, with or without /v1.",
)
@api_key_option
@click.option("--model", help="Name of the model; default: the server's first.")
@click.option("--system", metavar="TEXT", help="System message.")
@click.option("--max-tokens", type=click.IntRange(min=1), help="In an answer; default: what the context holds.")
@click.option("--temperature", type=FiniteRange(0, 2), help="0: greedy; default: the server's.")
@click.option("--seed", type=int, help="Makes sampling repeatable.")
@click.option("--policy", help="Tree policy of these requests; answers are the same with any.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the answer, its counts and its speed.")
def chat(message: tuple[str, ...], base_url: str, api_key: str | None, as_json: bool, **options: Any) -> None:
    """Talk to the model of a running server; with MESSAGE, or a text on standard input, get one answer.

    The answer streams to standard output. Tau (tokens a step) and tokens per second are shown while it comes, at the
    foot of a terminal, and then on standard error.

    \b
    goose chat
    goose chat "Name three primary colours."
    git diff | goose chat --system "Summarise this change." --max-tokens 200
    goose chat --base-url https://llm.example.com/v1 --json "Hello"

    Exit status: 0, 1 if the server cannot be reached or refuses, 2 for a wrong command line.
    """
    text = " ".join(message)
    if not text and not sys.stdin.isatty():
        text = sys.stdin.read().strip()
        if not text:
            raise click.UsageError("Give a MESSAGE, or a text on standard input.")
    if as_json and not text:
        raise click.UsageError("--json goes with a MESSAGE, or a text on standard input.")
    client = ChatClient(base_url, api_key)
    dialogue = _Dialogue(client, _request(options, client))
    if text:
        _answer_once(dialogue, text, as_json=as_json)
    else:
        _converse(dialogue)


@dataclass(slots=True)
class _Answer:
    content: str = ""
    reasoning: str = ""
    is_begun: bool = False

    def add(self, piece: Piece) -> None:
        self.is_begun = True
        if piece.is_thought:
            self.reasoning += piece.text
        else:
            self.content += piece.text


@dataclass(slots=True)
class _Dialogue:
    client: ChatClient
    # fields of each request but its messages
    request: dict[str, Any]
    turns: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str, line: StatusLine, *, echo: bool) -> tuple[_Answer, Progress]:
        """The answer, which joins the dialogue, also as far as it came before Ctrl-C."""
        turn = {"role": "user", "content": text}
        messages = [*self.request["messages"], *self.turns, turn]
        progress, answer = Progress(), _Answer()
        with line, closing(self.client.stream({**self.request, "messages": messages}, progress)) as stream:
            try:
                for piece in stream:
                    answer.add(piece)
                    if echo:
                        (line.aside if piece.is_thought else line.write)(piece.text)
                    line.show(_speed(progress))
            except KeyboardInterrupt:
                if not answer.is_begun:
                    raise
                progress.finish_reason = "interrupted"
        self.turns += [turn, {"role": "assistant", "content": answer.content}]
        return answer, progress


def _request(options: dict[str, Any], client: ChatClient) -> dict[str, Any]:
    system, policy = options.pop("system"), options.pop("policy")
    request = {name: value for name, value in options.items() if value is not None}
    request["model"] = request.get("model") or client.first_model()
    request["messages"] = [{"role": "system", "content": system}] if system else []
    if policy is not None:
        request["goose"] = {"policy": policy}
    return request


def _answer_once(dialogue: _Dialogue, text: str, *, as_json: bool) -> None:
    on_terminal = sys.stdout.isatty() and not as_json
    answer, progress = dialogue.ask(text, StatusLine(active=on_terminal), echo=not as_json)
    if progress.finish_reason == "interrupted":
        raise click.Abort
    if as_json:
        shown = {
            "model": dialogue.request["model"],
            "content": answer.content,
            "reasoning": answer.reasoning or None,
            "finish_reason": progress.finish_reason,
            "usage": progress.usage,
            "goose": progress.goose,
            "first_token_s": progress.first_token_s,
            "seconds": progress.seconds,
            "tokens_per_s": progress.tokens_per_s,
            "tau": progress.tau,
        }
        click.echo(json.dumps(shown))
        return
    click.echo()
    click.echo(click.style(_speed(progress), dim=True), err=True)


def _converse(dialogue: _Dialogue) -> None:
    click.echo(f"{dialogue.request['model']}. {_HELP}")
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return
        if text in ("/quit", "/exit"):
            return
        if text == "/new":
            dialogue.turns.clear()
            continue
        if not text:
            continue
        try:
            _, progress = dialogue.ask(text, StatusLine(active=sys.stdout.isatty()), echo=True)
        except KeyboardInterrupt:
            click.echo()
            continue
        except click.ClickException as error:
            error.show()
            continue
        click.echo("\n" + click.style(_speed(progress), dim=True))


def _speed(progress: Progress) -> str:
    if progress.first_token_s is None:
        return "no token yet"
    parts = [f"tau {progress.tau:.2f}", f"{progress.tokens_per_s:.1f} tokens/s", f"{progress.tokens} tokens"]
    parts.append(f"first after {progress.first_token_s:.2f} s")
    if progress.finish_reason not in (None, "stop"):
        parts.append(f"ended by {progress.finish_reason}")
    return "  ".join(parts)
