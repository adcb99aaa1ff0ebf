"""Grafana's dashboard and Prometheus' alerts ask for what `/metrics` has; with `GOOSE_PROMETHEUS`, a real one agrees.

`GOOSE_PROMETHEUS` is the path of a `prometheus` binary, with `promtool` beside it; `make telemetry` sets it.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from telemetry_builders import report_of

from goose_ray.engine.request import SourceStats
from goose_ray.engine.stats import E2E_BOUNDS, INTER_TOKEN_BOUNDS, TTFT_BOUNDS, Histogram
from goose_ray.telemetry.acceptance_state import AcceptanceState
from goose_ray.telemetry.metrics import METRICS_CONTENT_TYPE, render_metrics

CLUSTER = Path(__file__).resolve().parents[3] / "cluster"
_PATIENCE_S = 60.0


def histogram(bounds: tuple[float, ...], count: int) -> Histogram:
    return Histogram(bounds, (count,) * (len(bounds) + 1), sum=float(count))


def metrics_text(n: int) -> str:
    """Of two replicas that have done everything there is `n` times."""
    state = AcceptanceState(live_for_s=10)
    counters: tuple[str, ...] = (
        "generation_tokens",
        "prompt_tokens",
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_trees",
    )
    counters += ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_draft_errors", "num_preemptions")
    counters += ("num_steps", "num_rows", "forward_seconds", "step_seconds", "predicted_step_seconds")
    stats: dict[str, Any] = {name: n * (number + 1) for number, name in enumerate(counters)}
    stats |= {"step_error_seconds": n, "num_requests_running": 3, "num_requests_waiting": 1}
    stats |= {"kv_slots_used": 5, "kv_slots_total": 10, "accepted_per_position": (2 * n, n)}
    stats |= {"by_source": {"context": SourceStats(2 * n, n)}, "finished_by_reason": {"stop": n}}
    stats |= {"ttft_seconds": histogram(TTFT_BOUNDS, n), "e2e_seconds": histogram(E2E_BOUNDS, n)}
    stats |= {"inter_token_seconds": histogram(INTER_TOKEN_BOUNDS, n), "queue_seconds": histogram(TTFT_BOUNDS, n)}
    for name in "ab":
        state.observe(report_of(name, n, {"context": (2 * n, n)}, **stats), 0)
    return render_metrics(state.view(0), "m")


def dashboard() -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((CLUSTER / "grafana/dashboards/goose.json").read_text())
    return parsed


def queries() -> dict[str, str]:
    """Panel or alert -> PromQL, with Grafana's variables filled in."""
    found = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard()["panels"]
        for target in panel.get("targets", ())
    }
    (group,) = yaml.safe_load((CLUSTER / "prometheus/alerts.yml").read_text())["groups"]
    found |= {rule["alert"]: rule["expr"] for rule in group["rules"]}
    return {name: expr.replace("$__rate_interval", "1m").replace("$model", ".*") for name, expr in found.items()}


def test_every_query_asks_for_metrics_and_labels_that_there_are() -> None:
    labels: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics_text(1)):
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    assert len(queries()) > 30
    for name, expr in queries().items():
        asked = re.findall(r"\bgoose_\w+", expr)
        assert asked, name
        for metric in asked:
            assert metric in labels, f"{name}: {metric}"
        matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expr)
        grouped = [label.strip() for by in re.findall(r"by \(([^)]*)\)", expr) for label in by.split(",")]
        for label in (*matched, *grouped):
            assert all(label in labels[metric] for metric in asked), f"{name}: {label}"
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            for label in re.findall(r"{{(\w+)}}", target["legendFormat"]):
                metric = re.findall(r"\bgoose_\w+", target["expr"])[0]
                assert label in labels[metric], target["legendFormat"]


def test_every_metric_of_the_engine_is_on_the_dashboard() -> None:
    families = [f for f in text_string_to_metric_families(metrics_text(1)) if f.name.startswith("goose_")]
    asked = " ".join(queries().values())
    missing = {family.name for family in families if family.name not in asked}
    assert not missing


def test_panels_have_numbers_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        assert one["x"] + one["w"] <= 24
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert beside or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)


def test_the_provisioned_datasource_is_the_one_that_panels_ask() -> None:
    provisioned = yaml.safe_load((CLUSTER / "grafana/provisioning/datasources/prometheus.yml").read_text())
    (uid,) = [source["uid"] for source in provisioned["datasources"]]
    assert {panel["datasource"]["uid"] for panel in dashboard()["panels"] if "datasource" in panel} == {uid}


class _Growing(BaseHTTPRequestHandler):
    scrapes = 0

    def do_GET(self) -> None:
        type(self).scrapes += 1
        body = metrics_text(10 * self.scrapes).encode()
        self.send_response(200)
        self.send_header("Content-Type", METRICS_CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def _prometheus(binary: Path, folder: Path, target: int) -> Iterator[httpx.Client]:
    config = yaml.safe_load((CLUSTER / "prometheus/prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{target}"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shutil.copy(CLUSTER / "prometheus/alerts.yml", folder)
    subprocess.run([binary.with_name("promtool"), "check", "config", folder / "prometheus.yml"], check=True, timeout=60)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    process = subprocess.Popen([binary, f"--config.file={folder}/prometheus.yml", *options, "--log.level=error"])
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            yield client
    finally:
        process.terminate()
        process.wait(30)


@pytest.mark.long
def test_a_real_prometheus_answers_every_query(tmp_path: Path) -> None:
    binary = os.environ.get("GOOSE_PROMETHEUS")
    if not binary:
        pytest.skip("GOOSE_PROMETHEUS names no prometheus")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Growing)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # an alert has no series while nothing is wrong
    left = {name: expr for name, expr in queries().items() if not name.startswith("Goose")}
    alerts = {name: expr for name, expr in queries().items() if name.startswith("Goose")}
    try:
        with _prometheus(Path(binary), tmp_path, server.server_port) as client:
            deadline = time.monotonic() + _PATIENCE_S
            while not _is_ready(client) and time.monotonic() < deadline:
                time.sleep(0.2)
            while left and time.monotonic() < deadline:
                left = {name: expr for name, expr in left.items() if not _answered(client, expr)}
                time.sleep(0.5)
            assert not left
            for expr in alerts.values():
                assert client.get("/api/v1/query", params={"query": expr}).json()["status"] == "success"
            assert len(client.get("/api/v1/rules").json()["data"]["groups"][0]["rules"]) == len(alerts)
    finally:
        server.shutdown()
        server.server_close()


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def _answered(client: httpx.Client, expr: str) -> bool:
    """Whether there are series, and each is a number. Raises AssertionError for what is no PromQL."""
    answer = client.get("/api/v1/query", params={"query": expr}).json()
    assert answer["status"] == "success", answer
    values = [float(series["value"][1]) for series in answer["data"]["result"]]
    return bool(values) and not any(value != value for value in values)
