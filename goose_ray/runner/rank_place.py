"""Where a rank is: on which host, and which of the gang's it is. Told to what looks it up in the environment."""

import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path

__all__ = ["GangPlace", "RankPlace", "tell_environment", "unlink_shared_memory"]

# Linux: "get interface address"
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank's process is."""

    node_id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlace:
    """A rank's place among the others."""

    rank: int
    num_ranks: int
    # its number among the ranks of its host, and how many those are
    local_rank: int
    num_local: int
    # where rank 0 holds the store
    host: str
    port: int
    timeout_s: float


def tell_environment(place: GangPlace) -> None:
    """What DeepSpeed and torch.distributed look up in the environment, for this process alone."""
    os.environ.update(
        RANK=str(place.rank),
        WORLD_SIZE=str(place.num_ranks),
        LOCAL_RANK=str(place.local_rank),
        # The shared-memory collective is set up if this is the number of ranks, and crashes if it was not.
        LOCAL_SIZE=str(place.num_local),
        MASTER_ADDR=place.host,
        MASTER_PORT=str(place.port),
    )
    interface = _interface_of(place)
    if interface is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = interface


def _interface_of(place: GangPlace) -> str | None:
    """The network interface by which other hosts reach this one; gloo would go by the host's name, often loopback's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((place.host, place.port))
        except OSError:
            return None
        own = probe.getsockname()[0]
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()))
            except OSError:
                # it has no IPv4 address
                continue
            if socket.inet_ntoa(answer[20:24]) == own:
                return name
    return None


def unlink_shared_memory(place: GangPlace) -> None:
    """All ranks of this host have opened each other's segment: nameless, it is freed with the last of them."""
    name = f"deepspeed_allreduce_buffer_{os.getuid()}_{place.host}_{place.port}_{place.rank}"
    (Path("/dev/shm") / name).unlink(missing_ok=True)
