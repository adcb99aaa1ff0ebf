"""The connections between engine and ranks: steps and answers, whoever fails, dies, is missing or is no rank at all."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from runner_steps import Part, build_step

from goose_ray.engine.step import StepBatch, StepOutput, VerifiedPath
from goose_ray.errors import EngineDeadError
from goose_ray.runner.rank_leash import Leash, LeashWatch
from goose_ray.runner.step_channel import ChannelAddress, ChannelListener, StepDriver, StepFollower, connect

BATCH = build_step([Part(chain=[5], context_slots=[3], drafts=([7, 8], [0, 1]))], np.array([0, 1, 2]))
TOKEN = bytes(range(32))
WAIT_S = 30.0

Execute = Callable[[StepBatch], StepOutput | None]


def answer(batch: StepBatch) -> StepOutput:
    """Says which tokens it was given."""
    return StepOutput(paths=(VerifiedPath(np.arange(1, 2), batch.token_ids[1:]),), harvest=None, forward_s=0.5)


def silent(batch: StepBatch) -> None:
    return None


@pytest.fixture
def listener() -> Iterator[ChannelListener]:
    listener = ChannelListener("127.0.0.1", token=TOKEN)
    yield listener
    listener.close()


def follow(address: ChannelAddress, rank: int, execute: Execute) -> threading.Thread:
    def run() -> None:
        try:
            StepFollower.connect(address, rank).follow(execute)
        except ZeroDivisionError:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def driver_of(listener: ChannelListener, *executes: Execute) -> tuple[StepDriver, list[threading.Thread]]:
    threads = [follow(listener.address, rank, execute) for rank, execute in enumerate(executes)]
    found = listener.accept(len(executes), (StepDriver.KIND,), timeout_s=WAIT_S)
    return StepDriver(found[StepDriver.KIND]), threads


def test_every_rank_runs_every_step_and_rank_0_answers(listener: ChannelListener) -> None:
    seen: list[int] = []

    def note(batch: StepBatch) -> None:
        seen.append(batch.num_rows)

    driver, threads = driver_of(listener, answer, note, note)
    for _ in range(3):
        output = driver.step(BATCH)
        (path,) = output.paths
        assert path is not None
        assert path.token_ids.tolist() == [7, 8]
        assert output.forward_s == 0.5
    driver.check_alive()
    driver.close()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert seen == [3] * 6
    with pytest.raises(EngineDeadError, match="told to stop"):
        driver.step(BATCH)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_fails_says_why(listener: ChannelListener, rank: int) -> None:
    def fail(batch: StepBatch) -> None:
        1 / 0  # noqa: B018

    executes: list[Execute] = [silent, silent]
    executes[rank] = fail
    driver, _ = driver_of(listener, *executes)
    with pytest.raises(EngineDeadError, match=f"rank {rank} failed: ZeroDivisionError: division by zero"):
        driver.step(BATCH)
    with pytest.raises(EngineDeadError, match=f"rank {rank} failed"):
        driver.check_alive()


def test_a_rank_that_leaves_ends_the_step_that_waits_for_another(listener: ChannelListener) -> None:
    thread = follow(listener.address, 0, silent)
    leaving = connect(listener.address, 1, StepDriver.KIND)
    driver = StepDriver(listener.accept(2, (StepDriver.KIND,), timeout_s=WAIT_S)[StepDriver.KIND])
    # what was sent before is still there for it: it leaves in the middle of the step
    leaving.close()
    with pytest.raises(EngineDeadError, match=r"rank 1 (has died|is gone)"):
        driver.step(BATCH)
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_what_is_known_from_elsewhere_ends_a_step_too(listener: ChannelListener) -> None:
    received = threading.Event()

    def note(batch: StepBatch) -> None:
        received.set()

    driver, _ = driver_of(listener, note)

    def lose() -> None:
        received.wait(WAIT_S)
        driver.fail("rank 0 is silent")

    threading.Thread(target=lose, daemon=True).start()
    with pytest.raises(EngineDeadError, match="rank 0 is silent"):
        driver.step(BATCH)


def test_who_does_not_know_the_token_is_no_rank(listener: ChannelListener) -> None:
    strangers = [
        connect(ChannelAddress("127.0.0.1", listener.address.port, bytes(32)), 0, StepDriver.KIND),
        connect(ChannelAddress("127.0.0.1", listener.address.port, TOKEN), 7, StepDriver.KIND),
    ]
    with socket.create_connection(("127.0.0.1", listener.address.port)) as scanner:
        scanner.sendall(b"GET / HTTP/1.1\r\n\r\n")
        scanner.shutdown(socket.SHUT_WR)
        driver, _ = driver_of(listener, answer)
    assert driver.step(BATCH).paths
    for stranger in strangers:
        with pytest.raises(EOFError):
            stranger.receive()
    assert "1, 2" not in repr(listener.address)


def test_ranks_that_do_not_come_are_named(listener: ChannelListener) -> None:
    follow(listener.address, 1, silent)
    with pytest.raises(TimeoutError, match=r"ranks \[0, 2\] did not connect"):
        listener.accept(3, (StepDriver.KIND,), timeout_s=1.0)


LEASHED = """
import sys, threading
from goose_ray.runner.rank_leash import Leash, WatchedEngine
from goose_ray.runner.step_channel import ChannelAddress
port, how, pid, node_id = (*sys.argv[1:], "", "")[:4]
watched = WatchedEngine(1.5, "here", int(pid)) if pid else None
leash = Leash.connect(ChannelAddress("127.0.0.1", int(port), bytes(range(32))), 0, watched, node_id=node_id)
if how == "spins":
    threading.Event().wait()
leash.join()
"""

ENGINE = """
import threading
from goose_ray.runner.rank_leash import Leash, LeashWatch
from goose_ray.runner.step_channel import ChannelListener
listener = ChannelListener("127.0.0.1", token=bytes(range(32)))
print(listener.address.port, flush=True)
watch = LeashWatch(listener.accept(1, (Leash.KIND,), timeout_s=30)[Leash.KIND], print, silence_s=30)
print("whole", flush=True)
threading.Event().wait()
"""


def leashed(listener: ChannelListener, how: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", LEASHED, str(listener.address.port), how])


def test_a_rank_whose_engine_has_gone_ends_whatever_it_does(listener: ChannelListener) -> None:
    process = leashed(listener, "spins")
    (connection,) = listener.accept(1, (Leash.KIND,), timeout_s=WAIT_S)[Leash.KIND]
    assert process.poll() is None
    connection.close()
    assert process.wait(WAIT_S) == 1


def test_a_rank_that_was_freed_may_go_on(listener: ChannelListener) -> None:
    process = leashed(listener, "waits")
    lost: list[str] = []
    watch = LeashWatch(
        listener.accept(1, (Leash.KIND,), timeout_s=WAIT_S)[Leash.KIND],
        lambda rank, what: lost.append(what),
        silence_s=WAIT_S,
    )
    watch.free()
    watch.free()
    assert process.wait(WAIT_S) == 0
    assert lost == []


def test_ranks_hear_that_the_engine_lives(listener: ChannelListener) -> None:
    rank = connect(listener.address, 0, Leash.KIND)
    lost: list[str] = []
    watch = LeashWatch(
        listener.accept(1, (Leash.KIND,), timeout_s=WAIT_S)[Leash.KIND],
        lambda rank, what: lost.append(what),
        silence_s=WAIT_S,
    )
    first, second = (rank.receive()[0] for _ in range(2))
    assert first == second
    watch.free()
    rank.close()
    assert lost == []


@pytest.mark.parametrize("is_near", [True, False])
def test_a_rank_ends_with_an_engine_that_is_stopped(is_near: bool) -> None:
    """And ends the engine's process, if it is on the same node."""
    engine = subprocess.Popen([sys.executable, "-c", ENGINE], stdout=subprocess.PIPE)
    assert engine.stdout is not None
    port = engine.stdout.readline().decode().strip()
    rank = subprocess.Popen(
        [sys.executable, "-c", LEASHED, port, "spins", str(engine.pid), "here" if is_near else "there"]
    )
    assert engine.stdout.readline() == b"whole\n"
    os.kill(engine.pid, signal.SIGSTOP)
    assert rank.wait(WAIT_S) == 1
    if not is_near:
        assert engine.poll() is None
        engine.kill()
    assert engine.wait(WAIT_S) == -signal.SIGKILL
    engine.stdout.close()


@pytest.mark.parametrize(("how", "what"), [("SIGKILL", "has died"), ("SIGSTOP", "has not given a sign of life for")])
def test_the_engine_learns_of_a_rank_that_dies_or_stops(listener: ChannelListener, how: str, what: str) -> None:
    process = leashed(listener, "waits")
    lost: list[tuple[int, str]] = []
    known = threading.Event()

    def lose(rank: int, what: str) -> None:
        lost.append((rank, what))
        known.set()

    watch = LeashWatch(listener.accept(1, (Leash.KIND,), timeout_s=WAIT_S)[Leash.KIND], lose, silence_s=2.5)
    os.kill(process.pid, signal.Signals[how])
    assert known.wait(WAIT_S)
    process.kill()
    process.wait(WAIT_S)
    watch.free()
    assert [rank for rank, _ in lost] == [0]
    assert lost[0][1].startswith(what)
