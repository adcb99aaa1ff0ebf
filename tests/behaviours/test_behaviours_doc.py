"""docs/behaviours.md names the tests that there are."""

import re
from pathlib import Path

_HERE = Path(__file__).parent
_DOC = (_HERE.parents[1] / "docs" / "behaviours.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there() -> None:
    code = "\n".join(file.read_text(encoding="utf-8") for file in sorted(_HERE.parent.rglob("test_*.py")))
    named = set(re.findall(r"`(test_\w+)`", _DOC))
    assert named <= set(re.findall(r"^def (test_\w+)", code, re.MULTILINE))


def test_every_behaviour_has_a_test_of_its_number() -> None:
    """Those of ranks have tests of other names, since they are about more than one of them."""
    rows = re.findall(r"^\| B(\d+) \|(.*)\|$", _DOC, re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 21)]
    for number, row in rows:
        names = re.findall(r"`(test_\w+)`", row)
        assert names
        assert {name[6:8] for name in names if re.match(r"test_b\d\d_", name)} == (
            set() if int(number) in (16, 17, 20) else {f"{int(number):02}"}
        )
