"""What those who have keys have in common: nothing, and nothing of them is logged."""

import logging
from pathlib import Path

import pytest
from keyed_server import ALICE, BOB, ask, bearer, key_file
from scripted_backend import CHAT, MODEL, SCRIPT, ScriptedBackend

from goose_ray.api.auth.api_key import hash_of
from goose_ray.api.auth.key_ring import KeyRing
from goose_ray.errors import EngineDeadError


def test_no_two_have_a_salt_in_common(tmp_path: Path) -> None:
    keys, backend = KeyRing(key_file(tmp_path)), ScriptedBackend()
    for key in (ALICE, BOB):
        for salt in ({}, {"cache_salt": "s"}, {"cache_salt": "alice:s"}):
            ask(keys, "POST", "/v1/chat/completions", bearer(key), backend, json={**CHAT, **salt})
    salts = [call.cache_salt for call in backend.calls]
    assert len(set(salts)) == 6
    assert None not in salts


def test_one_finds_its_own_again(tmp_path: Path) -> None:
    keys, backend = KeyRing(key_file(tmp_path)), ScriptedBackend()
    for _ in range(2):
        ask(keys, "POST", "/v1/completions", bearer(ALICE), backend, json={"model": MODEL, "prompt": "x"})
    assert backend.calls[0].cache_salt == backend.calls[1].cache_salt


def test_neither_keys_nor_texts_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys, secret = KeyRing(key_file(tmp_path)), "the-text-of-a-prompt"
    chat = {**CHAT, "messages": [{"role": "user", "content": secret}]}
    for script in (SCRIPT, [EngineDeadError("dead")], [ZeroDivisionError("fault")]):
        for body in (chat, {**chat, "stream": True}, {**chat, "temperature": secret}):
            ask(keys, "POST", "/v1/chat/completions", bearer(ALICE), ScriptedBackend(script), json=body)
    ask(keys, "POST", "/v1/chat/completions", bearer(ALICE + "x"), json=chat)
    assert "dead" in caplog.text
    for text in (ALICE, hash_of(ALICE), secret):
        assert text not in caplog.text
