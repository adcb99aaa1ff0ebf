"""The dashboard as lines of a terminal, from the JSON of `/v1/goose/live`.

Knows no screen but its width. What the server says is stripped of control characters: a name cannot move the cursor.
"""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["render_live"]

_BARS = "▁▂▃▄▅▆▇█"
_BAR_CELLS = 20
_MAX_TREES = 2
# ANSI: the terminal's own colours, so that they are readable on its background
_SOURCE_COLOURS = ("34", "33", "32", "35", "36", "90")
_BOLD, _RED = "1", "31"


def render_live(live: Mapping[str, Any], *, width: int, colour: bool) -> list[str]:
    """At most `width` columns a line."""
    return _Renderer(live, width, colour).lines()


class _Renderer:
    def __init__(self, live: Mapping[str, Any], width: int, colour: bool) -> None:
        self._live = live
        self._width = max(40, width)
        self._colour = colour

    def lines(self) -> list[str]:
        parts = [self._head(), self._curves(), self._sources(), self._replicas(), *self._trees()]
        return [line for index, part in enumerate(parts) if part for line in ([""] if index else []) + part]

    def _head(self) -> list[str]:
        cluster = self._live["cluster"]
        away = "" if self._live["remembered"] else "  the aggregator is away"
        replicas = f"{cluster['healthy']} of {cluster['live']} replicas healthy{away}"
        numbers = (
            f"{_number(cluster['tokens_per_s'])} tokens/s   tau {_number(cluster['tau'])}   "
            f"{cluster['running']} running   {cluster['waiting']} waiting   "
            f"KV {_percent(cluster['kv_used'], cluster['kv_total'])}"
        )
        state = self._painted(replicas, "" if cluster["healthy"] and not away else _RED)
        return [f"{self._painted('goose', _BOLD)} {_plain(self._live['model'])}   {state}", self._cut(numbers)]

    def _curves(self) -> list[str]:
        room = self._width - 22
        points = self._live["history"][-room:]
        if not points:
            return []
        return [
            f"{name:10}{_curve([point[key] for point in points])} {_number(points[-1][key]):>8}"
            for name, key in (("tokens/s", "tokens_per_s"), ("tau", "tau"))
        ]

    def _sources(self) -> list[str]:
        lines = []
        for name, counts in self._live["sources"].items():
            attempted, accepted = counts["attempted"], counts["accepted"]
            filled = round(_BAR_CELLS * accepted / attempted) if attempted else 0
            bar = self._painted("█" * filled, self._source_colour(name)) + "·" * (_BAR_CELLS - filled)
            depths = " ".join(_percent(hits, tries).removesuffix(" %") for _, _, tries, hits in counts["by_depth"])
            head = f"{_plain(name):12.12} "
            tail = f" {_percent(accepted, attempted):>6} of {attempted}"
            by_depth = f"   by depth, %: {depths}" if depths else ""
            lines.append(head + bar + _whole_words(tail + by_depth, self._width - len(head) - _BAR_CELLS))
        return lines

    def _replicas(self) -> list[str]:
        columns = ("state", "run", "wait", "KV", "tokens/s", "tau")
        widths = (10, 5, 5, 7, 9, 6)
        room = max(8, min(36, self._width - sum(widths)))
        lines = [f"{'replica':{room}}" + "".join(f"{name:>{w}}" for name, w in zip(columns, widths, strict=True))]
        for replica in self._live["replicas"]:
            state = "healthy" if replica["healthy"] else "unhealthy" if replica["live"] else "gone"
            cells = (
                state,
                str(replica["running"]),
                str(replica["waiting"]),
                _percent(replica["kv_used"], replica["kv_total"]),
                _number(replica["tokens_per_s"]),
                _number(replica["tau"]),
            )
            line = f"{_plain(replica['replica_id'])[-(room - 1) :]:{room}}"
            line += "".join(f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True))
            lines.append(self._painted(line, "" if replica["healthy"] else _RED))
        return lines

    def _trees(self) -> list[list[str]]:
        return [self._tree(tree) for tree in self._live["trees"][:_MAX_TREES]]

    def _tree(self, tree: Mapping[str, Any]) -> list[str]:
        parents, accepted = tree["parents"], {0, *tree["accepted"]}
        column, row = _layout(parents)
        head = (
            f"{_plain(tree['replica_id'])}, step {tree['step_id']}: {len(parents) - 1} drafted, "
            f"{len(accepted) - 1} accepted (upper case)"
        )
        # two cells a column: the edge and the node
        cells = [[" "] * (2 * max(column) + 2) for _ in range(max(row) + 1)]
        for node, parent in enumerate(parents):
            edge, line = 2 * column[node], row[node]
            cells[line][edge + 1] = self._node(tree, node, node in accepted)
            if node and row[parent] == line:
                cells[line][edge] = "═" if node in accepted else "─"
            elif node:
                cells[line][edge] = "└"
        for node, parent in enumerate(parents[1:], 1):
            for between in range(row[parent] + 1, row[node]):
                cell = cells[between][2 * column[node]]
                cells[between][2 * column[node]] = {" ": "│", "└": "├"}.get(cell, cell)
        return [self._cut(head), *("".join(line[: self._width]).rstrip() for line in cells)]

    def _node(self, tree: Mapping[str, Any], node: int, is_accepted: bool) -> str:
        if node == 0:
            return "●"
        bits = tree["sources"][node]
        names = self._live["source_names"]
        name = next((each for number, each in enumerate(names) if bits >> number & 1), "?")
        letter = _letters(names).get(name, "?")
        return self._painted(letter.upper() if is_accepted else letter, self._source_colour(name))

    def _source_colour(self, name: str) -> str:
        names = self._live["source_names"]
        return _SOURCE_COLOURS[names.index(name) % len(_SOURCE_COLOURS)] if name in names else ""

    def _painted(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code and text else text

    def _cut(self, text: str) -> str:
        return text[: self._width]


def _whole_words(text: str, width: int) -> str:
    """`text`, or as many of its words as have room before an ellipsis: half of a number would be another number."""
    return text if len(text) <= width else f"{text[: max(0, width - 1)].rpartition(' ')[0]} …"


def _layout(parents: Sequence[int]) -> tuple[list[int], list[int]]:
    """Column and row of each node, as the page has them: the longest path straight on, branches below."""
    children: list[list[int]] = [[] for _ in parents]
    column, row, reach = [0] * len(parents), [0] * len(parents), [0] * len(parents)
    for node, parent in enumerate(parents[1:], 1):
        children[parent].append(node)
        column[node] = column[parent] + 1
    for node in range(len(parents) - 1, 0, -1):
        reach[parents[node]] = max(reach[parents[node]], reach[node] + 1)
    rows = 0
    pending: list[tuple[int, int | None]] = [(0, None)]
    while pending:
        node, given = pending.pop()
        row[node] = rows if given is None else given
        rows += given is None
        below = sorted(children[node], key=lambda child: (-reach[child], child))
        pending.extend(reversed([(child, None if rank else row[node]) for rank, child in enumerate(below)]))
    return column, row


def _letters(names: Sequence[str]) -> dict[str, str]:
    letters: dict[str, str] = {}
    for name in names:
        letters[name] = next((each for each in name if each not in letters.values()), "?")
    return letters


def _curve(values: Sequence[float | None]) -> str:
    most = max((value for value in values if value is not None), default=0.0) or 1.0
    top = len(_BARS) - 1
    return "".join(" " if value is None else _BARS[round(top * max(0.0, value) / most)] for value in values)


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)
