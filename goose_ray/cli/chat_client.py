"""One chat answer over HTTP, as it comes, and what can be told of its speed on the way.

Speaks to a goose server: a chunk of a stream is a step, so that tokens and tau can be counted before the end.
"""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click

__all__ = ["ChatClient", "Piece", "Progress", "refusal", "server_address", "unreachable"]

_TIMEOUT_S = 600.0
_EVENT, _DONE = b"data: ", b"[DONE]"


class Piece(NamedTuple):
    """`is_thought`: of what the model thinks before it answers."""

    text: str
    is_thought: bool


@dataclass(slots=True)
class Progress:
    """Of one answer; `goose`, `usage` and `finish_reason` come with its end."""

    started: float = field(default_factory=time.monotonic)
    first_token_s: float | None = None
    # from the request to the last token
    seconds: float = 0.0
    tokens: int = 0
    steps: int = 0
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    goose: dict[str, Any] | None = None

    @property
    def tau(self) -> float:
        """Tokens a step: the server's own count once there is one. 0 before the first token."""
        if self.goose is not None:
            return float(self.goose["tau"])
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Over all the time since the request; 0 before the first token. One step may give all of an answer."""
        return self.tokens / self.seconds if self.tokens else 0.0

    def count(self, token_ids: list[int]) -> None:
        """What one step has committed."""
        if not token_ids:
            return
        self.seconds = time.monotonic() - self.started
        if self.first_token_s is None:
            self.first_token_s = self.seconds
        self.tokens += len(token_ids)
        self.steps += 1


class ChatClient:
    """Raises ClickException with what the server said, or that it cannot be reached."""

    def __init__(self, base_url: str, api_key: str | None) -> None:
        self._url = server_address(base_url)
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"

    def first_model(self) -> str:
        with self._open("/v1/models") as answer:
            try:
                return str(json.load(answer)["data"][0]["id"])
            except (ValueError, LookupError, TypeError) as error:
                raise click.ClickException(f"{self._url} is no OpenAI-compatible server") from error

    def stream(self, body: Mapping[str, Any], progress: Progress) -> Generator[Piece]:
        """Pieces of the answer; closing it hangs up, which ends the request. Keeps `progress`."""
        asked = {"stream_options": {"include_usage": True}, "return_token_ids": True, "return_goose_stats": True}
        with self._open("/v1/chat/completions", {**asked, **body, "stream": True}) as answer:
            for line in answer:
                if not line.startswith(_EVENT) or line.strip() == _EVENT + _DONE:
                    continue
                chunk = json.loads(line.removeprefix(_EVENT))
                if "error" in chunk:
                    raise click.ClickException(f"the answer broke off: {chunk['error'].get('message')}")
                progress.usage = chunk.get("usage") or progress.usage
                progress.goose = chunk.get("goose") or progress.goose
                for choice in chunk.get("choices") or ():
                    progress.count(choice.get("token_ids") or [])
                    progress.finish_reason = choice.get("finish_reason") or progress.finish_reason
                    delta = choice["delta"]
                    if thought := delta.get("reasoning") or delta.get("reasoning_content"):
                        yield Piece(thought, is_thought=True)
                    yield Piece(delta.get("content") or "", is_thought=False)

    def _open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, headers=self._headers)
        try:
            return urllib.request.urlopen(request, timeout=_TIMEOUT_S)
        except urllib.error.HTTPError as error:
            raise refusal(self._url + path, error) from error
        except OSError as error:
            raise unreachable(self._url, error) from error


def server_address(base_url: str) -> str:
    """Without the /v1 that OpenAI's clients want, and without a slash at its end. Raises BadParameter, which does not
    repeat a password.
    """
    if "@" in base_url:
        raise click.BadParameter(
            "must be as http://127.0.0.1:8000 is, without user, password and @: "
            "an API key goes into --api-key or OPENAI_API_KEY",
            param_hint="--base-url",
        )
    if not base_url.startswith(("http://", "https://")):
        raise click.BadParameter(f"must begin with http:// or https://, not {base_url!r}", param_hint="--base-url")
    try:
        parts = urlsplit(base_url)
        is_address = bool(parts.hostname) and parts.port != 0 and base_url.isprintable() and " " not in base_url
    except ValueError:
        is_address = False
    if not is_address:
        raise click.BadParameter(f"must be as http://127.0.0.1:8000 is, not {base_url!r}", param_hint="--base-url")
    return base_url.rstrip("/").removesuffix("/v1")


def refusal(address: str, error: urllib.error.HTTPError) -> click.ClickException:
    """For what a server answers at `address`. Reads its body."""
    said = _said(error)
    text = f"{address} answers {error.code}" + (f": {said}" if said else "")
    if error.code == HTTPStatus.UNAUTHORIZED:
        text += "; give a key with --api-key or OPENAI_API_KEY"
    return click.ClickException(text)


def unreachable(url: str, error: OSError) -> click.ClickException:
    """For a server at `url` that urllib could not speak to."""
    reason = getattr(error, "reason", error)
    return click.ClickException(f"{url} cannot be reached ({reason}): is `goose serve` running?")


def _said(error: urllib.error.HTTPError) -> str:
    """The message of OpenAI's error body, or what else stands there, if it is no page."""
    text = error.read(4096).decode(errors="replace")
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return "is it a goose server?" if text.lstrip().startswith("<") else text.strip()[:200]
