"""schemathesis: what the server answers to requests made up from its own OpenAPI document.

`GOOSE_SCHEMA_CASES` is the number of cases of each operation.
"""

import os
from typing import Any

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="make clients")

import hypothesis  # noqa: E402

from clients.helpers import Server  # noqa: E402

pytestmark = pytest.mark.usefixtures("isolated")
_TIMEOUT_S = 300
_TOKENS = 4
_LIMITS = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
_CASES = int(os.environ.get("GOOSE_SCHEMA_CASES", "20"))


def test_no_5xx_and_no_undocumented_status(server: Server) -> None:
    schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
    checks = [schemathesis.checks.not_a_server_error, schemathesis.specs.openapi.checks.status_code_conformance]
    num_cases = 0

    for operation in schema.get_all_operations():
        tried = operation.ok()

        @hypothesis.given(case=tried.as_strategy())
        @hypothesis.settings(max_examples=_CASES, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
        def answer_is_documented(case: Any) -> None:
            nonlocal num_cases
            num_cases += 1
            if isinstance(case.body, dict):
                # so that no answer goes on to the end of the context; whatever else stands there stays
                for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
                    if isinstance(case.body.get(name), int):
                        case.body[name] = min(case.body[name], _TOKENS)
                limit = _LIMITS.get(case.operation.path)
                if limit is not None:
                    case.body.setdefault(limit, _TOKENS)
            case.call_and_validate(base_url=server.url, checks=checks, timeout=_TIMEOUT_S)

        answer_is_documented()
    assert num_cases >= _CASES
