"""Progress where there is no terminal: a line now and then, and no bar."""

import io
from collections.abc import Iterator

from goose_ray.bench.progress import LINE_PERIOD_S, progress


def lines_of(seconds: list[float], total: int | None) -> list[str]:
    """Of something that is done at these times; it begins at 0."""
    stream = io.StringIO()
    times: Iterator[float] = iter([0.0, *seconds])
    with progress("gsm8k", unit="reply", total=total, stream=stream, clock=times.__next__) as on_reply:
        for _ in seconds:
            on_reply()
    return stream.getvalue().splitlines()


def test_a_line_at_most_every_period() -> None:
    period = LINE_PERIOD_S
    seconds = [0.9 * period, 1.0 * period, 1.9 * period, 3.5 * period]
    assert lines_of(seconds, 8) == ["gsm8k: reply 2 of 8", "gsm8k: reply 4 of 8"]


def test_a_total_that_is_not_known_is_not_named() -> None:
    assert lines_of([LINE_PERIOD_S], None) == ["gsm8k: reply 1"]


def test_a_terminal_gets_a_bar() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with progress("gsm8k", unit="reply", total=2, stream=stream) as on_reply:
        on_reply()
        on_reply()
    assert "100%" in stream.getvalue()
    assert "2/2" in stream.getvalue()
