"""The running application that faults happen to: what it must be when it is whole, what it holds when it is idle."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx

from chaos import processes, traffic
from chaos.processes import Process
from chaos.traffic import Answer, Ask

__all__ = ["Stage", "ViolationError"]

# What an idle process may have opened since it was first seen idle: connections of Ray to processes that came later.
_MORE_FILES = 40
_IDLE_WITHIN_S = 30.0
_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "goose_kv_slots_used")


class ViolationError(AssertionError):
    """Something that no fault excuses."""


class Stage:
    """To be used from one event loop. `snapshot` is where the aggregator keeps its memory."""

    def __init__(self, url: str, model: str, snapshot: Path, *, num_replicas: int) -> None:
        self.url, self.model, self.snapshot = url, model, snapshot
        self.port = int(url.rpartition(":")[2])
        self._num_replicas = num_replicas
        self._expected = Counter(dict.fromkeys(processes.ROLES, 1)) + Counter({processes.REPLICA: num_replicas - 1})
        self._references: dict[str, Answer] = {}
        self._files: dict[Process, int] = {}
        self.most_files_more: Counter[str] = Counter()

    def http(self, *, timeout_s: float = 300.0) -> httpx.AsyncClient:
        """A client that keeps no connection: what is open is in use."""
        limits = httpx.Limits(max_keepalive_connections=0)
        return httpx.AsyncClient(base_url=self.url, timeout=timeout_s, limits=limits)

    def of_role(self, role: str) -> list[Process]:
        return [process for process in processes.find() if process.role == role]

    async def learn_references(self) -> None:
        """Undisturbed: one request at a time, and then all at once. What differs from itself is no reference."""
        async with self.http() as http:
            for ask in traffic.ASKS:
                self._references[ask.name] = await traffic.answer_to(http, self.model, ask)
            together = await asyncio.gather(*(traffic.answer_to(http, self.model, ask) for ask in traffic.ASKS))
        for ask, second in zip(traffic.ASKS, together, strict=True):
            first = self._references[ask.name]
            if first.end != "whole" or first.content != second.content:
                raise ViolationError(f"{ask.name} has no reference: {first} and {second}")

    def error_in(self, ask: Ask, answer: Answer, *, interrupted: bool = False) -> str | None:
        found = traffic.error_in(answer, self._references[ask.name], interrupted=interrupted)
        return found and f"{ask.name}: {found}"

    def expect(self, ask: Ask, answer: Answer) -> None:
        """Raises ViolationError unless it is the whole answer."""
        if (found := self.error_in(ask, answer)) is not None:
            raise ViolationError(found)

    async def whole_within(self, limit_s: float) -> None:
        """Until every process is there, every replica gets requests, and a request is answered as ever."""

        async def is_whole() -> str | None:
            counted = Counter(process.role for process in processes.find())
            if counted != self._expected:
                return f"processes {dict(counted)}, not {dict(self._expected)}"
            async with self.http(timeout_s=5) as http:
                health = (await http.get("/health")).json()
                steps = (await http.get("/v1/goose/steps?last=1")).json()
                if health["replicas"]["healthy"] < self._num_replicas or len(steps["replicas"]) < self._num_replicas:
                    return f"{health}, {len(steps['replicas'])} replicas answer"
                (ask,) = [ask for ask in traffic.ASKS if ask.name == "short"]
                return self.error_in(ask, await traffic.answer_to(http, self.model, ask))

        await self._until_none(is_whole, limit_s)

    async def check_idle(self) -> None:
        """Once no client is there: raises ViolationError for what requests have left behind."""

        async def held() -> str | None:
            async with self.http(timeout_s=10) as http:
                lines = (await http.get("/metrics")).text.splitlines()
            gauges = {name: sum(float(line.split()[-1]) for line in lines if _is_of(name, line)) for name in _GAUGES}
            if any(gauges.values()):
                return f"gauges {gauges}"
            connections = sum(process.num_connections(self.port) for process in self.of_role(processes.PROXY))
            return f"{connections} connections of clients" if connections else None

        await self._until_none(held, _IDLE_WITHIN_S)
        for process in processes.find():
            num_files = process.num_files()
            more = num_files - self._files.setdefault(process, num_files)
            self.most_files_more[process.role] = max(self.most_files_more[process.role], more)
            if more > _MORE_FILES:
                raise ViolationError(f"{process} has {more} files more open than when it was first idle")

    async def _until_none(self, look: Callable[[], Awaitable[str | None]], limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                wrong = await look()
            except (httpx.HTTPError, ValueError, KeyError) as error:
                # nobody there, or somebody who is not whole
                wrong = repr(error)
            if wrong is None:
                return
            if time.monotonic() > deadline:
                raise ViolationError(f"after {limit_s:g} s: {wrong}")
            await asyncio.sleep(0.1)


def _is_of(name: str, line: str) -> bool:
    return line.startswith((f"{name} ", f"{name}{{"))
