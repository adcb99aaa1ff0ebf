"""That a run of faults can be gone on with, and what is told of it. Nothing runs here."""

from chaos.driver import Record
from chaos.kinds import KINDS, dealt, named
from chaos.report import page_of, progress_of


def test_a_fault_depends_on_seed_and_number_alone() -> None:
    few, many = dealt(3, 50), dealt(3, 200)
    assert many[:50] == few
    assert [draw.number for draw in many] == list(range(1, 201))
    assert many[40].random().random() == few[40].random().random()
    assert len({draw.random().random() for draw in many}) == 200
    assert [draw.kind for draw in dealt(4, 50)] != [draw.kind for draw in few]


def test_two_hundred_faults_have_every_kind() -> None:
    assert {draw.kind.name for draw in dealt(1, 200)} == {kind.name for kind in KINDS}


def test_what_is_told_of_a_violation_is_enough_to_go_on_from_it() -> None:
    draw = dealt(3, 50)[40]
    record = Record(draw, whole_s=None, load=1.5, num_answers=5, violations=["greedy: cut"], facts=["replica:17"])
    lines = progress_of(record, 50).splitlines()
    assert lines[0] == f"41/50 {draw.kind.name}: never whole again, 0 of 5 interrupted, load 1.5"
    assert "greedy: cut" in lines[1]
    assert "replica:17" in lines[2]
    assert "FAULTS=50 FAULTS_SEED=3 FAULTS_FROM=41 make faults" in lines[3]


def test_the_table_has_median_and_worst_of_each_kind() -> None:
    draws = [draw for draw in dealt(1, 400) if draw.kind == named("kill a replica")][:3]
    records = [
        Record(draw, whole_s=s, load=2.0, num_answers=6) for draw, s in zip(draws, (7.0, 30.0, 9.0), strict=True)
    ]
    assert "| kill a replica | 3 | 9.0 s | 30.0 s | 18 | 0 | 0 |" in page_of(records, seed=1)
    records[1].whole_s = None
    assert "| kill a replica | 3 | 8.0 s | never |" in page_of(records, seed=1)
