"""The engine in a thread of its own, and its asyncio face. No event loop ever waits for a forward.

The thread alone touches the engine. Others reach it through an inbox that it empties before each step, so a cancelled
request is gone, sequence and slots, before the next step begins.
"""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING

from goose.calibration import AcceptanceTable
from goose.tuning import TreeTuning
from goose.tuning_counts import TuningCounts
from goose_ray.engine.between_steps import CallsBetweenSteps
from goose_ray.engine.engine import Engine
from goose_ray.engine.grammar import Grammar
from goose_ray.engine.grammar_workers import GrammarWorkers
from goose_ray.engine.request import GenerationRequest, RequestOutput
from goose_ray.engine.snapshots import EngineSnapshots
from goose_ray.engine.stats import EngineStats
from goose_ray.engine.step import ModelSpec
from goose_ray.engine.stream import Stream, send
from goose_ray.engine.tokenizer import Tokenizer
from goose_ray.engine.trace import StepRecord
from goose_ray.engine.tree_trace import TreeRecord
from goose_ray.errors import EngineDeadError, GooseRayError

if TYPE_CHECKING:
    from goose.anisotropic.calibration_file import CalibrationFile

__all__ = ["EngineLoop"]

_logger = logging.getLogger(__name__)


class EngineLoop:
    """Owns the engine from `start` to `stop`, once. Every method may be called from any thread, and from any number of
    event loops.
    """

    def __init__(
        self, engine: Engine, *, stall_timeout_s: float = 300.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine = engine
        self._stall_timeout_s = stall_timeout_s
        self._clock = clock
        self._thread: threading.Thread | None = None
        # Guards the inbox and the two flags.
        self._wake = threading.Condition()
        self._inbox: deque[tuple[str, Stream]] = deque()
        # request ids with the reasons
        self._aborts: deque[tuple[str, str]] = deque()
        self._calls = CallsBetweenSteps()
        self._accepting = False
        self._stopping = False
        # The engine thread's own: a request id belongs to the stream that the engine accepted it from.
        self._streams: dict[str, Stream] = {}
        self._death: BaseException | None = None
        self._step_started_s: float | None = None
        self._grammars = GrammarWorkers(engine.grammars)
        self._snapshots = EngineSnapshots(engine, clock)

    @property
    def spec(self) -> ModelSpec:
        return self._engine.spec

    @property
    def policies(self) -> tuple[str, ...]:
        return self._engine.policies

    @property
    def tokenizer(self) -> Tokenizer:
        return self._engine.tokenizer

    @property
    def max_model_len(self) -> int:
        """Most tokens, prompt and max_tokens together, that a request may have."""
        return self._engine.max_model_len

    def prepare(self) -> None:
        """What the first requests of a kind would else wait for. May be left out."""
        self._grammars.prepare()

    def start(self) -> None:
        """Idempotent. Raises EngineDeadError after `stop`."""
        with self._wake:
            if self._stopping:
                raise EngineDeadError("the engine loop was stopped and cannot be started again")
            if self._thread is not None:
                return
            self._accepting = True
            self._thread = threading.Thread(target=self._run, name="goose-engine")
            self._thread.start()

    def stop(self) -> None:
        """Waits for the step in progress, ends outstanding requests with "abort", frees the runner. Idempotent."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._grammars.stop()
        self._engine.shutdown()

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[RequestOutput]:
        """One item for each step that adds to the request, the last with a finish reason.

        Closing or cancelling the iterator cancels the request. The first item raises InvalidRequestError or
        OverloadedError if the engine does not take the request; any item, EngineDeadError.
        """
        arrived_s = self._clock()
        stream = Stream(request, arrived_s, await self._compiled(request))
        self._post("add", stream)
        try:
            while not stream.ended:
                item = await stream.items.get()
                if isinstance(item, Exception):
                    stream.ended = True
                    raise item
                stream.ended = item.finish_reason is not None
                yield item
        finally:
            if not stream.ended:
                self._post("cancel", stream)

    async def _compiled(self, request: GenerationRequest) -> Grammar | None:
        structured = request.sampling.structured
        if structured is None:
            return None
        if not self._accepting:
            raise EngineDeadError("the engine loop is not running") from self._death
        return await self._grammars.compiled(structured)

    def abort(self, request_id: str, reason: str) -> None:
        """Ends a request from outside: its iterator raises GooseRayError with the reason. Nothing if there is none."""
        with self._wake:
            self._aborts.append((request_id, reason))
            self._wake.notify()

    def stats(self) -> EngineStats:
        """As of the last step or cancellation."""
        return self._snapshots.stats

    def acceptance(self) -> AcceptanceTable:
        """A copy, at most half a second old; current when nothing runs."""
        return self._snapshots.acceptance.copy()

    @property
    def tuning(self) -> TreeTuning:
        """What requests start with at present."""
        return self._engine.learning.tuning

    def tune(self, tuning: TreeTuning) -> None:
        """For requests that the engine takes from its next step on. Does not wait; nothing once the loop has ended."""
        with self._wake:
            if self._accepting:
                self._calls.post(lambda: self._engine.learning.tune(tuning))
                self._wake.notify()

    def tuning_counts(self) -> TuningCounts:
        """As old as `acceptance`."""
        return self._snapshots.tuning_counts

    async def learned(self, max_tokens: int) -> "CalibrationFile | None":
        """What another replica could start from. Taken between two steps, which wait for it some milliseconds.

        Raises EngineDeadError.
        """
        with self._wake:
            if not self._accepting:
                raise EngineDeadError("the engine loop is not running") from self._death
            found = self._calls.post(lambda: self._engine.learning.learned(max_tokens))
            self._wake.notify()
        return await asyncio.wrap_future(found)

    def step_trace(self, count: int | None = None) -> tuple[StepRecord, ...]:
        """The last `count` steps, oldest first; all that are kept by default."""
        return self._engine.trace.last(count)

    def tree_trace(self) -> tuple[TreeRecord, ...]:
        """Trees of the last steps, oldest first."""
        return self._engine.tree_trace.last()

    def check_health(self) -> None:
        """Raises EngineDeadError if the thread has ended, a step has stalled or the runner is dead."""
        if self._death is not None:
            raise EngineDeadError(f"the engine loop has died: {self._death}") from self._death
        if self._thread is None or not self._thread.is_alive():
            raise EngineDeadError("the engine loop is not running")
        started_s = self._step_started_s
        if started_s is not None and self._clock() - started_s > self._stall_timeout_s:
            raise EngineDeadError(f"a step has been running for more than {self._stall_timeout_s} s")
        self._engine.check_health()

    def _post(self, verb: str, stream: Stream) -> None:
        with self._wake:
            if not self._accepting:
                if verb == "cancel":
                    return
                raise EngineDeadError("the engine loop is not running") from self._death
            self._inbox.append((verb, stream))
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._empty_inbox():
                self._step()
            outputs = self._engine.abort_all()
            self._snapshots.take()
            self._dispatch(outputs)
            self._calls.refuse()
        except BaseException as error:
            self._die(error)

    def _empty_inbox(self) -> bool:
        """Waits while there is nothing to do. False once the loop is to stop."""
        with self._wake:
            self._wake.wait_for(
                lambda: self._inbox or self._aborts or self._calls or self._stopping or self._engine.has_work
            )
            changed = bool(self._inbox or self._aborts)
        self._calls.answer()
        while command := self._next_command():
            verb, stream = command
            if verb == "add":
                self._add(stream)
            else:
                self._cancel(stream)
        # Behind the inbox, where the request itself may have been.
        while self._aborts:
            self._abort(*self._aborts.popleft())
        if changed:
            self._snapshots.take()
        return self._accepting

    def _next_command(self) -> tuple[str, Stream] | None:
        with self._wake:
            if self._inbox:
                return self._inbox.popleft()
            # Together with the look at the inbox, so that nothing is posted that would never be read.
            self._accepting = not self._stopping
            return None

    def _add(self, stream: Stream) -> None:
        try:
            self._engine.add_request(stream.request, arrived_s=stream.arrived_s, grammar=stream.grammar)
        except Exception as error:
            # The engine has kept nothing of it, so whatever is wrong is this request's own affair.
            send(stream.event_loop, [(stream, error)])
        else:
            self._streams[stream.request.request_id] = stream

    def _cancel(self, stream: Stream) -> None:
        # The id may be another stream's by now, or this one was refused.
        request_id = stream.request.request_id
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]
            self._engine.cancel(request_id)

    def _abort(self, request_id: str, reason: str) -> None:
        if stream := self._streams.get(request_id):
            self._cancel(stream)
            send(stream.event_loop, [(stream, GooseRayError(reason))])

    def _step(self) -> None:
        self._step_started_s = self._clock()
        outputs = self._engine.step()
        self._step_started_s = None
        # Before the outputs: who has seen its last token finds it counted.
        self._snapshots.take()
        self._dispatch(outputs)

    def _dispatch(self, outputs: Iterable[RequestOutput]) -> None:
        by_event_loop: dict[asyncio.AbstractEventLoop, list[tuple[Stream, RequestOutput]]] = {}
        for output in outputs:
            stream = self._streams[output.request_id]
            if output.finish_reason:
                del self._streams[output.request_id]
            by_event_loop.setdefault(stream.event_loop, []).append((stream, output))
        for event_loop, items in by_event_loop.items():
            if not send(event_loop, items):
                for stream, _ in items:
                    self._cancel(stream)

    def _die(self, error: BaseException) -> None:
        _logger.critical("the engine loop has died", exc_info=error)
        with self._wake:
            self._death = error
            self._accepting = False
            orphans = [*self._streams.values(), *(stream for verb, stream in self._inbox if verb == "add")]
            self._inbox.clear()
        self._calls.refuse()
        for stream in orphans:
            dead = EngineDeadError(f"the engine loop has died: {error}")
            dead.__cause__ = error
            send(stream.event_loop, [(stream, dead)])
