"""Specifications that would take the library hours, all memory or more stack than there is: refused in a moment, and
nobody else notices.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes import EOS, FakeTokenizer

from goose_ray.engine import grammar_trial
from goose_ray.engine.grammar import GrammarState, Place
from goose_ray.engine.grammar_compiler import GrammarCompiler
from goose_ray.engine.grammar_trial import GrammarTrial
from goose_ray.engine.grammar_workers import GrammarWorkers
from goose_ray.engine.structured import StructuredKind, StructuredOutput
from goose_ray.errors import InvalidRequestError, OverloadedError

WORDS = StructuredOutput("regex", "[a-z]+")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(FakeTokenizer(specials=(EOS,)), vocab_size=257, eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def workers(compiler: GrammarCompiler) -> Iterator[GrammarWorkers]:
    workers = GrammarWorkers(compiler)
    workers.prepare()
    yield workers
    workers.stop()


def chain_of_references(length: int) -> str:
    links: dict[str, Any] = {str(n): {"items": {"$ref": f"#/{n + 1}"}} for n in range(length)}
    return json.dumps({**links, str(length): True, "$ref": "#/0"})


def chain_of_terminals(length: int) -> str:
    return "start: A0\n" + "".join(f"A{n}:A{n + 1}\n" for n in range(length)) + f'A{length}:"x"\n'


def chain_of_rules(length: int, atoms: int) -> str:
    """GBNF, of which the library looks at all atoms once for each rule."""
    links = "".join(f"a{n} ::= a{n + 1}\n" for n in range(length))
    return f'root ::= b\nb ::= {".|" * atoms}root\n{links}a{length} ::= "x"\n'


def twice_each(levels: int) -> str:
    twice = {str(n + 1): {"allOf": [{"$ref": f"#/{n}"}] * 2} for n in range(levels)}
    return json.dumps({"0": {"type": "string", "pattern": "a" * 400 + ".*"}, **twice, "$ref": f"#/{levels}"})


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json_schema", '{"multipleOf": 99999989}'),
        ("grammar", 'start: "x" %json {"type": "integer", "multipleOf": 99999989}'),
        ("grammar", "start: A\nA: /.*a.{30}/ & /.*b.{29}/ & ~/.*c.{28}/"),
        ("json_schema", chain_of_references(3300)),
        ("grammar", chain_of_rules(505, 60_000)),
        ("grammar", chain_of_terminals(7000)),
        ("json_schema", twice_each(24)),
        (
            "json_schema",
            json.dumps({"patternProperties": {f"^{n:04}": True for n in range(999)}, "additionalProperties": False}),
        ),
    ],
    ids=["multiple", "multiple in Lark", "operators", "references", "GBNF", "terminals", "twice each", "patterns"],
)
def test_what_would_not_end_is_refused(workers: GrammarWorkers, kind: StructuredKind, spec: str) -> None:
    with pytest.raises(InvalidRequestError, match="takes more than 3 s or 256 MiB to compile") as refused:
        asyncio.run(workers.compiled(StructuredOutput(kind, spec)))
    assert refused.value.param == "structured_outputs"


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("json_schema", json.dumps({"multipleOf": 0.01, "minimum": 0})),
        ("json_schema", chain_of_references(100)),
        ("json_schema", json.dumps({"properties": {f"p{n}": {"type": "integer"} for n in range(400)}})),
        ("grammar", chain_of_terminals(100)),
        ("grammar", 'start: A\nA: /[a-z]+/ & ~"no"'),
        ("choice", json.dumps([f"option {n}" for n in range(3000)])),
        ("regex", r"(\w+[ ,.]?){1,100}"),
        ("grammar", 'root ::= "a"\n'),
    ],
)
def test_what_people_ask_for_passes(workers: GrammarWorkers, kind: StructuredKind, spec: str) -> None:
    state = GrammarState(asyncio.run(workers.compiled(StructuredOutput(kind, spec))))
    assert state.place is Place.OPEN


@pytest.mark.parametrize(
    "spec", ['root ::= "a"\n' + 131_000 * "\n", 131_000 * "\n" + 'start: "a"'], ids=["GBNF", "Lark"]
)
def test_blank_lines_do_not_come_to_the_expression_of_the_library(
    workers: GrammarWorkers, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    """That takes two minutes for as many, and lets no other thread of the process run."""

    def is_lark_syntax(text: str) -> bool:
        pytest.fail("the library looks")

    monkeypatch.setattr("llguidance.gbnf_to_lark.is_lark_syntax", is_lark_syntax)
    assert GrammarState(asyncio.run(workers.compiled(StructuredOutput("grammar", spec)))).place is Place.OPEN


def test_what_is_wrong_is_said_as_ever(workers: GrammarWorkers) -> None:
    with pytest.raises(InvalidRequestError, match="is no valid regex"):
        asyncio.run(workers.compiled(StructuredOutput("regex", "(")))


def test_who_asks_a_process_that_dies_asks_another_one(compiler: GrammarCompiler) -> None:
    trial = GrammarTrial(lambda: compiler.vocabulary)
    try:
        assert trial.passes("start: /a/")
        assert trial._process is not None
        first = trial._process.pid
        os.kill(first, signal.SIGSTOP)
        killing = threading.Timer(0.1, os.kill, (first, signal.SIGKILL))
        killing.start()
        assert trial.passes("start: /b/")
        killing.join()
        assert trial._process.pid != first
        trial._process.kill()
        trial._process.wait()
        assert trial.passes("start: /c/")
    finally:
        trial.stop()


def test_where_all_of_them_die_it_is_nobodys_fault(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    trial = GrammarTrial(lambda: compiler.vocabulary)

    def killed(process: subprocess.Popen[bytes], *told: Any) -> None:
        process.kill()
        process.wait()
        raise BrokenPipeError

    monkeypatch.setattr(grammar_trial, "_tell", killed)
    try:
        with pytest.raises(OverloadedError, match="try again later"):
            trial.passes("start: /a/")
        monkeypatch.undo()
        assert trial.passes("start: /a/")
    finally:
        trial.stop()


# the second is more than a pipe holds
@pytest.mark.parametrize("text", ["start: /a/", "start: /a/" + 200_000 * " "])
def test_one_that_does_not_answer_is_given_up(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    trial = GrammarTrial(lambda: compiler.vocabulary)
    try:
        trial.start()
        assert trial._process is not None
        first = trial._process
        os.kill(first.pid, signal.SIGSTOP)
        monkeypatch.setattr(grammar_trial, "_TIMEOUT_S", 0.1)
        with pytest.raises(OverloadedError, match="try again later"):
            trial.passes(text)
        assert first.poll() is not None
    finally:
        trial.stop()


def test_nothing_is_left_of_one_that_was_stopped(compiler: GrammarCompiler) -> None:
    workers = GrammarWorkers(compiler)
    workers.prepare()
    processes = [trial._process for trial in workers._trials]
    workers.stop()
    workers.stop()
    assert all(process is not None and process.poll() is not None for process in processes)
    with pytest.raises(OverloadedError, match="try again later"):
        workers._trials[0].passes("start: /a/")


def test_who_asks_one_that_is_stopped_meanwhile_is_told(compiler: GrammarCompiler) -> None:
    trial = GrammarTrial(lambda: compiler.vocabulary)
    trial.start()
    process = trial._process
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(trial.passes, "start: /a/" + 200_000 * " ")
        while not trial._using.locked():
            pass
        trial.stop()
        with pytest.raises(OverloadedError, match="try again later"):
            asking.result(60)
    assert process.poll() is not None
    assert process.stdin is not None
    assert process.stdin.closed


def test_a_question_whose_child_somebody_kills_is_asked_again(compiler: GrammarCompiler) -> None:
    trial = GrammarTrial(lambda: compiler.vocabulary)
    trial.start()
    process = trial._process
    assert process is not None
    try:
        with ThreadPoolExecutor(1) as pool:
            # takes 3 s
            asking = pool.submit(trial.passes, 'start: "x" %json {"multipleOf": 99999989}')
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            while not (found := children.read_text().split()):
                assert not asking.done()
            os.kill(int(found[0]), signal.SIGKILL)
            # what it is then told is the second child's end
            assert not asking.result(60)
        assert process.poll() is not None
    finally:
        trial.stop()


def test_a_process_that_could_not_be_told_all_is_not_kept(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[subprocess.Popen[bytes]] = []

    def stuck(process: subprocess.Popen[bytes], *_: Any) -> None:
        told.append(process)
        raise TimeoutError

    trial = GrammarTrial(lambda: compiler.vocabulary)
    monkeypatch.setattr(grammar_trial, "_tell", stuck)
    with pytest.raises(TimeoutError):
        trial.start()
    assert told[0].poll() is not None
    monkeypatch.undo()
    try:
        assert trial.passes("start: /a/")
    finally:
        trial.stop()


def test_it_ends_with_whoever_started_it(compiler: GrammarCompiler) -> None:
    trial = GrammarTrial(lambda: compiler.vocabulary)
    trial.start()
    process = trial._process
    assert process is not None
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
    trial.stop()
