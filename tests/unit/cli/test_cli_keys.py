"""`goose keys`: what it prints, and what the file then holds."""

import json
from pathlib import Path

from click.testing import CliRunner, Result

from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.cli.main import main


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def test_a_key_is_printed_once_and_works(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.jsonl")
    made = run("new", "--file", path, "--name", "alice", "--tokens-per-minute", "1000")
    assert made.exit_code == 0
    key = made.stdout.strip()
    found = KeyRing(Path(path)).find(key)
    assert found is not None
    assert (found.name, found.tokens_per_minute, found.requests_per_minute) == ("alice", 1000, None)
    listed = run("list", "--file", path)
    assert "alice" in listed.output
    assert "tokens_per_minute=1000" in listed.output
    assert key not in listed.output
    assert json.loads(run("list", "--file", path, "--json").stdout)["name"] == "alice"


def test_a_folder_that_is_not_there_is_named_and_not_made(tmp_path: Path) -> None:
    folder = tmp_path / "mistyped" / "below"
    refused = run("new", "--file", str(folder / "keys.jsonl"), "--name", "alice")
    assert (refused.exit_code, refused.stdout, folder.parent.exists()) == (1, "", False)
    assert f"there is no folder {folder} for keys.jsonl" in refused.stderr
    assert f"mkdir -p {folder}" in refused.stderr


def test_a_revoked_key_is_gone(tmp_path: Path) -> None:
    path = str(tmp_path / "keys.jsonl")
    for name in ("alice", "bob"):
        run("new", "--file", path, "--name", name)
    assert run("revoke", "--file", path, "--name", "alice").exit_code == 0
    assert "alice" not in run("list", "--file", path).output
    again = run("revoke", "--file", path, "--name", "alice")
    assert (again.exit_code, "no key named 'alice'" in again.output) == (1, True)


def test_what_is_no_name_and_what_is_no_file_of_keys_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("my notes")
    assert run("new", "--file", str(tmp_path / "keys.jsonl"), "--name", "a b").exit_code == 2
    refused = run("new", "--file", str(path), "--name", "alice")
    assert (refused.exit_code, path.read_text()) == (1, "my notes")
    listed = run("list", "--file", str(path))
    assert listed.exit_code == 1
    assert "line 1 is no JSON object" in listed.output
    assert "notes`" not in listed.output
