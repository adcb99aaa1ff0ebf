"""The file of keys: what it keeps, what changes it, and what is wrong with a line."""

from pathlib import Path

import pytest
from keyed_server import ALICE, BOB, key_file

from goose_ray.api.auth.api_key import ApiKey, hash_of
from goose_ray.api.auth.key_file import append_key, read_keys, revoke_keys
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.errors import ConfigError


def test_it_keeps_no_key_and_is_its_owners(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    assert path.stat().st_mode & 0o077 == 0
    assert ALICE not in path.read_text()
    assert [key.name for key in read_keys(path)] == ["alice", "bob"]


def test_a_change_is_seen_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    now = 0.0
    path = key_file(tmp_path)
    keys = KeyRing(path, clock=lambda: now)
    assert revoke_keys(path, "alice") == 1
    assert keys.find(ALICE) is not None
    now = 2.0
    assert keys.find(ALICE) is None
    assert keys.find(BOB) is not None
    path.write_text("{")
    now = 4.0
    assert keys.find(BOB) is not None
    path.unlink()
    now = 6.0
    assert keys.find(BOB) is not None


def test_comments_and_an_open_last_line_stay(tmp_path: Path) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text("# ours\n\n" + ApiKey(name="alice", sha256=hash_of(ALICE)).model_dump_json())
    append_key(path, ApiKey(name="bob", sha256=hash_of(BOB)))
    assert [key.name for key in read_keys(path)] == ["alice", "bob"]
    assert revoke_keys(path, "bob") == 1
    assert path.read_text().startswith("# ours\n\n")
    assert revoke_keys(path, "bob") == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no key"),
        ("# nothing\n", "has no key"),
        ("sk-goose-in-plain\n", "line 1"),
        ('{"name": "a", "sha256": "sk-goose-in-plain"}', "line 1: sha256"),
        ('{"name": "a b", "sha256": "' + "0" * 64 + '"}', "line 1: name"),
        ('\n{"name": "a", "sha256": "' + "0" * 64 + '", "limit": 3}', "line 2: limit"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "keys.jsonl"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as raised:
        KeyRing(path)
    assert "in-plain" not in str(raised.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        KeyRing(tmp_path / "none")
