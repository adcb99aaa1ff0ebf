"""The port to serve on: whether it is free, and who listens there if it is not."""

import json
import socket
from http.client import HTTPConnection, HTTPException

from goose_ray.cli.checks.finding import Finding, Verdict

__all__ = ["check_port"]

_TIMEOUT_S = 2.0
# bytes: far more than /health says
_MOST_READ = 4096


def check_port(host: str, port: int, *, joins_cluster: bool) -> Finding:
    """Whether somebody listens there: Serve's proxy would share the port with them without a word, and requests would
    go to either. In a cluster that is joined it may be Serve itself, which then takes the new configuration. And
    whether one can listen there at all, which Serve would try for ever.
    """
    subject, asked = f"port {port}", "127.0.0.1" if host in ("0.0.0.0", "::") else host
    try:
        with socket.create_connection((asked, port), timeout=_TIMEOUT_S):
            pass
    except OSError:
        problem = None if joins_cluster else _why_not_ours(host, port)
        if problem is None:
            return Finding(subject, Verdict.OK, f"free on {asked}")
        remedy = "take 127.0.0.1, 0.0.0.0 or an address of this machine (`--host`), and a port from 1024 on (`--port`)"
        return Finding(subject, Verdict.FAIL, f"nobody can listen on {host}:{port} here ({problem})", remedy)
    health = _health_of_goose(asked, port)
    who = "somebody listens on" if health is None else f"a goose server ({health}) answers on"
    if joins_cluster:
        remedy = "fine if it is this cluster's Serve, whose applications are then replaced; else take another --port"
        return Finding(subject, Verdict.WARN, f"{who} {asked}:{port}", remedy)
    stop = "stop it" if health is None else "to start another, stop it (Ctrl-C where it was started)"
    remedy = f"{stop}, or take another port (`goose serve --port`)"
    return Finding(subject, Verdict.FAIL, f"{who} {asked}:{port} already", remedy)


def _health_of_goose(host: str, port: int) -> str | None:
    """Its replicas in words; None: no goose server, or one that does not answer in time. Needs no API key."""
    connection = HTTPConnection(host, port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/health")
        told = json.loads(connection.getresponse().read(_MOST_READ))
        replicas = told["replicas"]
        return f"{replicas['healthy']:d} of {replicas['live']:d} replicas healthy"
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return None
    finally:
        connection.close()


def _why_not_ours(host: str, port: int) -> str | None:
    """What stands against listening there; None: nothing."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            trial.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return None
