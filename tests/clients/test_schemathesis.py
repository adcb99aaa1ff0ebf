"""schemathesis: what the server answers to requests made up from its own OpenAPI document.

`GOOSE_SCHEMA_CASES` is the number of cases of each operation, `GOOSE_SCHEMA_SEED` another seed than 0. Where there is a
body or a query, half of the cases are not as the document asks.
"""

import os
import sys
from collections import Counter
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="make clients")

import hypothesis  # noqa: E402

from clients.helpers import TIMEOUT_S, Server  # noqa: E402

pytestmark = pytest.mark.usefixtures("isolated")
_TOKENS = 4
_LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
_CASES = int(os.environ.get("GOOSE_SCHEMA_CASES", "20"))
_SEED = int(os.environ.get("GOOSE_SCHEMA_SEED", "0"))


def as_clients_write_it(part: Any) -> Any:
    """1 for 1.0, which to JSON Schema is an integer and to the server none, and JSON for the arguments of calls."""
    if isinstance(part, dict):
        return {
            name: "{}" if name == "arguments" and isinstance(value, str) else as_clients_write_it(value)
            for name, value in part.items()
        }
    if isinstance(part, list):
        return [as_clients_write_it(value) for value in part]
    return int(part) if isinstance(part, float) and part.is_integer() else part


def test_no_5xx_and_no_undocumented_status(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = [schemathesis.checks.not_a_server_error, schemathesis.specs.openapi.checks.status_code_conformance]
    modes = schemathesis.GenerationMode
    statuses: Counter[tuple[str, int]] = Counter()

    for operation in schema.get_all_operations():
        tried = operation.ok()
        cases = tried.as_strategy(modes.POSITIVE)
        if tried.body or tried.query:
            cases |= tried.as_strategy(modes.NEGATIVE)

        @hypothesis.seed(_SEED)
        @hypothesis.given(case=cases)
        @hypothesis.settings(
            max_examples=_CASES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
        )
        def answer_is_documented(case: Any) -> None:
            case.body = as_clients_write_it(case.body)
            if isinstance(case.body, dict):
                # so that no answer goes on to the end of the context; whatever else stands there stays
                for field in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                    if isinstance(case.body.get(field), int):
                        case.body[field] = min(case.body[field], _TOKENS)
                limit = _LIMITS.get(case.operation.path)
                if limit is not None:
                    case.body.setdefault(limit, _TOKENS)
            answer = case.call_and_validate(base_url=server.url, checks=checks, timeout=TIMEOUT_S)
            statuses[case.operation.label, answer.status_code] += 1

        answer_is_documented()

    with capsys.disabled():
        sys.stdout.write(f"\n{statuses.total()} requests\n")
        for (name, status), count in sorted(statuses.items()):
            sys.stdout.write(f"{name} answered {status} {count} times\n")
    # of every way to ask for an answer some were answered, and some refused
    for path in _LIMITS:
        assert statuses[f"POST {path}", 200], path
        assert statuses[f"POST {path}", 400], path
