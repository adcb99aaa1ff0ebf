"""docs/behaviours.md names the tests that there are."""

import re
from pathlib import Path

_HERE = Path(__file__).parent
_DOC = (_HERE.parents[1] / "docs" / "behaviours.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in sorted(_HERE.glob("test_*.py")))
    named = set(re.findall(r"`(test_b\d\d_\w+)`", _DOC))
    assert named <= set(re.findall(r"^def (test_b\d\d_\w+)", code, re.MULTILINE))


def test_every_behaviour_has_a_test_of_its_number() -> None:
    rows = re.findall(r"^\| B(\d+) \|(.*)\|$", _DOC, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 16), 18, 19]
    for number, row in rows:
        assert {name[6:8] for name in re.findall(r"`(test_b\d\d_\w+)`", row)} == {f"{int(number):02}"}
