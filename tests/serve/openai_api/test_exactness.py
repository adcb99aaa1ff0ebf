"""Over HTTP, under every policy, the server's token ids are those of transformers' `generate`.

Forty prompts and long replies take an hour: `make exact`, with `--base-url` for a running server.
"""

import json
from pathlib import Path

from click.testing import CliRunner

from goose_ray.cli.main import main
from serve.helpers import Server


def test_the_server_is_exact(server: Server, tmp_path: Path) -> None:
    raw, chat = tmp_path / "raw.jsonl", tmp_path / "chat.jsonl"
    raw.write_text(json.dumps({"id": "r", "prompt": "for i in range(3):\n    print(i)\n\nfor i in range(3):\n"}))
    chat.write_text(json.dumps({"id": "c", "turns": ["Repeat exactly: one fish, two fish, one fish, two fish."]}))
    files = ["--prompts", str(raw), str(chat), "--base-url", server.url]
    options = ["--max-tokens", "10", "--concurrency", "1", "--concurrency", "4", "--temperature", "0.8", "--json"]
    result = CliRunner().invoke(main, ["bench", "exact", *files, *options])
    report = json.loads(result.stdout)
    assert report["exact"], report
    assert len(report["checks"]) == 15
    assert all(check["num_cases"] == 2 for check in report["checks"])
