"""Ways to have requests answered: an engine in this process, or a server over HTTP. They answer with token ids."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from goose_ray.assembly import ReplicaParts, new_engine
from goose_ray.bench.prompts import Conversation, EncodedPrompt
from goose_ray.bench.replies import Reply, answer_each
from goose_ray.config import EngineConfig
from goose_ray.engine.sampling_params import SamplingParams
from goose_ray.errors import GooseRayError

__all__ = ["Case", "Decoder", "EngineDecoder", "HttpDecoder"]

# A reply on a busy small machine may take minutes; a server that hangs should still end the check.
_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """A request and the tokens that its prompt should come to."""

    name: str
    request: str | Conversation
    prompt: EncodedPrompt


class Decoder(Protocol):
    def answers(
        self,
        cases: Sequence[Case],
        sampling: SamplingParams,
        *,
        policy: str,
        concurrency: int,
        on_answer: Callable[[], object],
    ) -> dict[int, tuple[int, ...]]:
        """The token ids of each case's reply, by its index, `concurrency` requests at a time."""
        ...


class EngineDecoder:
    """A new engine for every call, on parts loaded once."""

    def __init__(self, parts: ReplicaParts, config: EngineConfig) -> None:
        self._parts, self._config = parts, config

    def answers(
        self,
        cases: Sequence[Case],
        sampling: SamplingParams,
        *,
        policy: str,
        concurrency: int,
        on_answer: Callable[[], object],
    ) -> dict[int, tuple[int, ...]]:
        config = self._config.model_copy(update={"policy": policy, "max_running_requests": concurrency})
        found: dict[int, tuple[int, ...]] = {}

        def keep(index: int, reply: Reply) -> None:
            found[index] = reply.token_ids
            on_answer()

        prompts = [case.prompt.token_ids for case in cases]
        answer_each(new_engine(self._parts, config), prompts, sampling, concurrency=concurrency, on_reply=keep)
        return found


class HttpDecoder:
    """A running server. Prompts go as text and messages, so that its tokenizer and chat template are checked too."""

    def __init__(self, base_url: str, *, api_key: str | None = None) -> None:
        """`base_url` is the server's root, with or without /v1. Raises GooseRayError if it does not answer."""
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._root = base_url.rstrip("/").removesuffix("/v1")
        self._model = self._call("/v1/models", None)["data"][0]["id"]

    def answers(
        self,
        cases: Sequence[Case],
        sampling: SamplingParams,
        *,
        policy: str,
        concurrency: int,
        on_answer: Callable[[], object],
    ) -> dict[int, tuple[int, ...]]:
        def ask(case: Case) -> tuple[int, ...]:
            token_ids = self._ask(case, sampling, policy)
            on_answer()
            return token_ids

        with ThreadPoolExecutor(concurrency) as pool:
            return dict(enumerate(pool.map(ask, cases)))

    def _ask(self, case: Case, sampling: SamplingParams, policy: str) -> tuple[int, ...]:
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "seed": sampling.seed,
            "return_token_ids": True,
            "goose": {"policy": policy},
        }
        if isinstance(case.request, Conversation) and not case.prompt.cut:
            tools = {"tools": list(case.request.tools)} if case.request.tools else {}
            answer = self._call("/v1/chat/completions", body | tools | {"messages": list(case.request.messages)})
            prompt_ids = answer["prompt_token_ids"]
        else:
            prompt = list(case.prompt.token_ids) if case.prompt.cut else case.request
            answer = self._call("/v1/completions", body | {"prompt": prompt})
            prompt_ids = answer["choices"][0]["prompt_token_ids"]
        if tuple(prompt_ids) != case.prompt.token_ids:
            raise GooseRayError(f"{case.name}: the server encodes the prompt otherwise than the model named here does")
        return tuple(answer["choices"][0]["token_ids"])

    def _call(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._root + path, data, self._headers)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise GooseRayError(f"{path} answered {error.code}: {error.read().decode(errors='replace')}") from error
        except OSError as error:
            raise GooseRayError(f"no answer from {self._root}{path}: {error}") from error
