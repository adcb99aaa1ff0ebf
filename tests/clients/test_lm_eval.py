"""lm-evaluation-harness, model `local-completions`: log-likelihoods of a tiny task, by `echo` and `logprobs`."""

import json
from pathlib import Path
from typing import Any

import pytest

lm_eval = pytest.importorskip("lm_eval", reason="make clients")

from clients.helpers import MODEL, Server  # noqa: E402

pytestmark = pytest.mark.usefixtures("isolated")
QUESTIONS = [
    {"question": "The capital of France is", "choices": [" Paris", " Berlin"], "answer": 0},
    {"question": "One, two, three,", "choices": [" banana", " four"], "answer": 1},
    {"question": "The opposite of hot is", "choices": [" cold", " seventeen"], "answer": 0},
]
TASK = {
    "task": "goose_tiny",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "answer",
    "target_delimiter": "",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}


def log_likelihood(server: Server, text: str, continuation: str) -> float:
    """Of the continuation's tokens, by plain HTTP."""
    body = {"prompt": text + continuation, "max_tokens": 0, "echo": True, "logprobs": 1}
    scored = server.post("/v1/completions", body)["choices"][0]["logprobs"]
    pairs = zip(scored["text_offset"], scored["token_logprobs"], strict=True)
    return float(sum(value for offset, value in pairs if offset >= len(text)))


@pytest.mark.parametrize("tokenized", [True, False], ids=["token ids", "text"])
def test_log_likelihoods_are_the_server_s(server: Server, tmp_path: Path, tokenized: bool) -> None:
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(one) + "\n" for one in QUESTIONS))
    task = {**TASK, "dataset_kwargs": {"data_files": {"test": str(tmp_path / "test.jsonl")}}}
    (tmp_path / "goose_tiny.yaml").write_text(json.dumps(task))
    found: dict[str, Any] = lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": MODEL,
            "base_url": f"{server.url}/v1/completions",
            "tokenizer": str(server.model_directory),
            "tokenized_requests": tokenized,
            "num_concurrent": 1,
            "max_retries": 1,
            "max_length": 2048,
        },
        tasks=["goose_tiny"],
        task_manager=lm_eval.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        bootstrap_iters=0,
    )
    assert found["results"]["goose_tiny"]["acc,none"] == 1.0
    for sample in found["samples"]["goose_tiny"]:
        question = QUESTIONS[sample["doc_id"]]
        for choice, (told, _) in zip(question["choices"], sample["filtered_resps"], strict=True):
            expected = log_likelihood(server, str(question["question"]), choice)
            assert float(told) == pytest.approx(expected, abs=1e-3)
