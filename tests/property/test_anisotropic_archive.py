"""The archive of texts: segments never overlap, what is given up is wiped, and room is found before more is taken."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from goose.anisotropic.archive import TextArchive
from goose.anisotropic.texts import NO_TOKEN

CAPACITY = 200


@dataclass(frozen=True)
class Live:
    start: int
    size: int
    salt: str | None
    scope: int


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["open", "open", "retire", "discard"]), st.integers(1, 60), st.sampled_from([None, "a"])),
    max_size=40,
)


@given(actions=ACTIONS)
def test_no_text_touches_another(actions: list[tuple[str, int, str | None]]) -> None:
    archive = TextArchive(CAPACITY)
    live: list[Live] = []
    most_live = 0
    for number, (verb, size, salt) in enumerate(actions, start=1):
        if verb == "open":
            start, scope = archive.open(size, salt)
            # Whatever was here is gone, and the positions around stay empty.
            assert (archive.texts.token_ids[start - 1 : start + size + 1] == NO_TOKEN).all()
            assert (archive.texts.scopes[start : start + size] == 0).all()
            archive.texts.token_ids[start : start + size] = number
            archive.texts.scopes[start : start + size] = scope
            live.append(Live(start, size, salt, scope))
        elif live:
            ended = live.pop(size % len(live))
            if verb == "discard":
                archive.discard(ended.start, ended.size, ended.salt)
                assert (archive.texts.token_ids[ended.start : ended.start + ended.size] == NO_TOKEN).all()
            else:
                kept = slice(ended.start + ended.size // 3, ended.start + ended.size)
                archive.retire(ended.start, ended.size, ended.salt, kept=kept)
        for one in live:
            written = archive.texts.token_ids[one.start : one.start + one.size]
            assert len(set(written.tolist())) == 1
            assert archive.texts.token_ids[one.start - 1] == archive.texts.token_ids[one.start + one.size] == NO_TOKEN
        assert len({one.scope for one in live if one.salt == "a"}) <= 1
        assert {one.scope for one in live if one.salt == "a"}.isdisjoint(one.scope for one in live if one.salt is None)
        most_live = max(most_live, sum(one.size + 1 for one in live))
    # Past texts never make it larger; holes between live ones may, by a doubling or two.
    assert len(archive.texts.token_ids) <= 4 * max(CAPACITY, most_live)


def test_a_scope_ends_with_its_last_text_and_is_not_used_again() -> None:
    archive = TextArchive(CAPACITY)
    start, first = archive.open(150, "a")
    archive.retire(start, 150, "a", kept=slice(start, start + 150))
    salted = [archive.is_salted]
    again, same = archive.open(10, "a")
    assert same == first
    archive.discard(again, 10, "a")
    # The past text gives way to this one, and with it goes the salt.
    archive.open(150, None)
    salted.append(archive.is_salted)
    assert salted == [True, False]
    assert archive.open(10, "a")[1] > first
    assert len(archive.texts.token_ids) == CAPACITY


def test_live_texts_that_need_more_get_more_and_keep_what_they_have() -> None:
    archive = TextArchive(CAPACITY)
    start, _ = archive.open(150, None)
    archive.texts.token_ids[start : start + 150] = 7
    other, _ = archive.open(150, None)
    assert (archive.texts.token_ids[start : start + 150] == 7).all()
    assert other >= start + 151
    assert len(archive.texts.token_ids) >= 302
