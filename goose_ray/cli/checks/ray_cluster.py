"""Which Ray a server here would use, and whether it answers.

Ray joins the cluster that RAY_ADDRESS or a file in its temporary folder names, and starts one of its own if neither
does. The file stays when a cluster dies without `ray stop`; whoever then connects waits for it without a word.
"""

import socket
from dataclasses import dataclass
from importlib.metadata import version

from goose_ray.cli.checks.finding import Finding, Verdict

__all__ = ["Cluster", "check_ray", "cluster_to_join"]

_ANSWER_TIMEOUT_S = 3.0
_CLIENT = "ray://"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The one that `ray.init()` would join."""

    address: str
    # the file that names it; None if the environment or the caller does
    address_file: str | None
    answers: bool

    @property
    def remedy(self) -> str:
        if self.address_file is None:
            return "start that cluster, or name another one; where neither names any, one is started here"
        return f"it ended without `ray stop`: remove the file (rm {self.address_file}), or run `ray stop`"


def cluster_to_join(address: str | None = None) -> Cluster | None:
    """`address` is as for `ray.init`; None if a cluster would be started here.

    Raises ValueError for what is no address.
    """
    from ray._common.utils import get_ray_address_file
    from ray._private.services import canonicalize_bootstrap_address
    from ray._private.utils import read_ray_address

    try:
        found = canonicalize_bootstrap_address(address.removeprefix(_CLIENT) if address else None)
    except ConnectionError:
        # `auto`, and none is to be found
        return None
    if found is None:
        return None
    host, _, port = found.rpartition(":")
    named = read_ray_address() if address in (None, "auto") else None
    is_from_file = named is not None and found == canonicalize_bootstrap_address(named)
    # in brackets stands what has colons: IPv6, and addresses of Ray's client
    answers = _answers(host.strip("[]").removeprefix(_CLIENT), int(port))
    return Cluster(found, get_ray_address_file(None) if is_from_file else None, answers)


def check_ray(address: str | None = None) -> Finding:
    ours = f"ray {version('ray')}"
    try:
        cluster = cluster_to_join(address)
    except ValueError as error:
        return Finding("ray", Verdict.FAIL, f"{ours}: {error}", "RAY_ADDRESS has the form host:port")
    if cluster is None:
        return Finding("ray", Verdict.OK, f"{ours}, no cluster named: a server starts its own")
    if cluster.answers:
        return Finding("ray", Verdict.OK, f"{ours}, a server joins the cluster at {cluster.address}")
    where = f"which {cluster.address_file} names" if cluster.address_file else "which --address or RAY_ADDRESS names"
    return Finding("ray", Verdict.FAIL, f"{ours}: nobody answers at {cluster.address}, {where}", cluster.remedy)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_TIMEOUT_S):
            return True
    except OSError:
        return False
