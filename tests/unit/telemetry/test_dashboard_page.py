"""The page at /dashboard: whole in itself, allowed to do nothing else, and its arithmetic, run by node."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
from importlib.resources import files
from typing import Any

import pytest
from scripted_backend import ScriptedBackend, request

STATIC = files("goose_ray.telemetry.dashboard") / "static"


def page() -> Any:
    response = request(ScriptedBackend(), "GET", "/dashboard")
    assert response.status_code == 200
    return response


def inline(name: str) -> str:
    (text,) = re.findall(f"<{name}>(.*?)</{name}>", page().text, re.DOTALL)
    return str(text)


class TestPage:
    def test_it_is_html_that_may_only_run_what_stands_in_it(self) -> None:
        response = page()
        assert response.headers["content-type"] == "text/html; charset=utf-8"
        assert response.headers["x-content-type-options"] == "nosniff"
        rules = dict(rule.strip().split(" ", 1) for rule in response.headers["content-security-policy"].split(";"))
        assert rules["default-src"] == "'none'"
        assert rules["connect-src"] == "'self'"
        for name in ("script", "style"):
            digest = base64.b64encode(hashlib.sha256(inline(name).encode()).digest()).decode()
            assert rules[f"{name}-src"] == f"'sha256-{digest}'"

    def test_it_loads_nothing(self) -> None:
        html = page().text
        # names of XML namespaces are no addresses
        addresses = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+[\w./]*", html)) - {"http://www.w3.org/2000/svg"}
        assert not addresses
        assert re.findall(r'(?:src|href)="([^"]*)"', html) == ["data:,", "v1/goose/live"]
        assert not re.search(r"@import|url\(|<img|<iframe", html)

    def test_nothing_the_server_says_is_read_as_markup(self) -> None:
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|eval\(", inline("script"))

    def test_head(self) -> None:
        response = request(ScriptedBackend(), "HEAD", "/dashboard")
        assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")


def luminance(colour: str) -> float:
    """WCAG 2's relative luminance of #rrggbb."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_of_text_and_curves_can_be_read(scheme: str) -> None:
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "page.css").read_text("utf-8"), re.DOTALL)
    colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light if scheme == "light" else dark))
    assert {f"s{number}" for number in range(6)} <= set(colours)
    for name in set(colours) - {"page", "card", "line"}:
        pair = sorted((luminance(colours[name]), luminance(colours["card"])))
        assert (pair[1] + 0.05) / (pair[0] + 0.05) >= 4.5, name


def evaluated(*expressions: str) -> list[Any]:
    """The values of JavaScript expressions that know the functions of figures.js."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    source = (STATIC / "figures.js").read_text("utf-8")
    script = f"{source}\nconsole.log(JSON.stringify([{','.join(expressions)}]));"
    done = subprocess.run([node, "-"], input=script, capture_output=True, text=True, check=True, timeout=60)
    values: list[Any] = json.loads(done.stdout)
    return values


class TestFigures:
    def test_a_tree_is_laid_out_with_its_longest_path_straight(self) -> None:
        #  0 - 2 - 3 - 5      the first child, 1, is a leaf; 4 branches off further right and comes first
        #      |   ` - 4'
        parents = [-1, 0, 0, 2, 2, 3]
        laid, alone = evaluated(
            f"(({{spine, ...rest}}) => ({{...rest, spine: [...spine]}}))(layoutTree({parents}))",
            "layoutTree([-1]).row",
        )
        assert laid["column"] == [0, 1, 1, 2, 2, 3]
        assert laid["row"] == [0, 2, 0, 0, 1, 0]
        assert (laid["rows"], laid["columns"], laid["spine"]) == (3, 4, [0, 2, 3, 5])
        assert alone == [0]

    def test_no_two_nodes_share_a_place(self) -> None:
        script = """(() => { let seed = 7; const next = (n) => (seed = (seed * 48271) % 2147483647) % n;
          for (let trial = 0; trial < 300; trial++) {
            const parents = [-1]; while (parents.length < 1 + next(60)) parents.push(next(parents.length));
            const { row, column } = layoutTree(parents);
            if (new Set(row.map((r, i) => `${r},${column[i]}`)).size !== parents.length) return parents;
            // the way down from a parent to its child's row is free
            for (let node = 1; node < parents.length; node++) for (let other = 0; other < parents.length; other++) {
              const up = parents[node];
              if (column[other] === column[up] && row[other] > row[up] && row[other] <= row[node]) return parents;
            }
          } return null; })()"""
        assert evaluated(script) == [None]

    def test_sources(self) -> None:
        names = ["context", "transitions", "pool", "grammar"]
        assert evaluated(f"sourcesOf(5, {names})", "[0, 1, 6, 8].map(firstSource)", f"lettersOf({names})") == [
            ["context", "pool"],
            [-1, 0, 1, 3],
            ["c", "t", "p", "g"],
        ]
        assert evaluated('lettersOf(["pool", "prompt", "pr"])') == [["p", "r", "?"]]

    @pytest.mark.parametrize(
        ("most", "ticks"), [(1, [0, 0.25, 0.5, 0.75, 1]), (7.3, [0, 2, 4, 6, 8]), (2.2, [0, 1, 2, 3])]
    )
    def test_axes_have_round_numbers(self, most: float, ticks: list[float]) -> None:
        assert evaluated(f"ticksTo({most})") == [ticks]

    def test_texts(self) -> None:
        numbers = evaluated("[null, 0, 7, 3.14159, 42.42, 12345, 3.2e6].map(shortNumber)")
        assert numbers == [["–", "0", "7", "3.14", "42.4", "12.3k", "3.2M"]]
        assert evaluated("[percent(1, 2), percent(1, 40), percent(0, 3), percent(0, 0)]") == [
            ["50 %", "2.5 %", "0 %", "–"]
        ]
        assert evaluated("pathThrough([[0, 1], null, [2, 3], [4, 5]])") == ["M0.0 1.0M2.0 3.0L4.0 5.0"]

    def test_history_grows_by_what_is_new_and_forgets_what_is_old(self) -> None:
        known = [{"t": t, "v": 0} for t in (0, 5, 10)]
        fresh = [{"t": t, "v": 1} for t in (10, 15)]
        (merged,) = evaluated(f"mergeHistory({json.dumps(known)}, {json.dumps(fresh)}, 12, 17)")
        assert [(point["t"], point["v"]) for point in merged] == [(5, 0), (10, 1), (15, 1)]

    def test_drift_waits_for_enough_attempts(self) -> None:
        counts = [[10, 5], [40, 10], [0, 0], [45, 45], [3, 0]]
        history = json.dumps([{"t": t, "sources": {"a": pair}} for t, pair in enumerate(counts)])
        drift, none, recent = evaluated(
            f"driftOf({history}, 'a', 50)", f"driftOf({history}, 'b', 1)", f"countsSince({history}, 'a', 2)"
        )
        assert drift == [[1, 0.3]]
        assert none == []
        assert recent == [48, 45]
