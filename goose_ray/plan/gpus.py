"""GPUs by name, with the figures of their maker's data sheets and white papers."""

from dataclasses import dataclass

from goose_ray.errors import ConfigError

__all__ = ["GPUS", "Gpu", "find_gpu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """`memory_bytes` as sold, in decimal gigabytes: the devices report somewhat more (an A100-40GB 42.4e9)."""

    memory_bytes: int
    # of the memory, bytes a second
    bandwidth: float
    # of 16-bit tensor cores, dense, multiplications and additions a second
    flops: float
    # of NVLink, bytes a second, both directions together
    link: float
    source: str


# The data sheets of H100 and H200 state 1,979 teraFLOPS with sparsity, which dense weights do not have; the white paper
# of the architecture has both, 989.4 and 1,978.9.
GPUS = {
    "A100-40GB": Gpu(
        memory_bytes=40 * 10**9,
        bandwidth=1.555e12,
        flops=312e12,
        link=600e9,
        source="NVIDIA A100 Tensor Core GPU data sheet nvidia-1758950 (A100 40GB SXM)",
    ),
    "A100-80GB": Gpu(
        memory_bytes=80 * 10**9,
        bandwidth=2.039e12,
        flops=312e12,
        link=600e9,
        source="NVIDIA A100 Tensor Core GPU data sheet nvidia-1758950 (A100 80GB SXM)",
    ),
    "H100-80GB": Gpu(
        memory_bytes=80 * 10**9,
        bandwidth=3.35e12,
        flops=989.4e12,
        link=900e9,
        source="NVIDIA H100 Tensor Core GPU data sheet (H100 SXM) and architecture white paper",
    ),
    "H200-141GB": Gpu(
        memory_bytes=141 * 10**9,
        bandwidth=4.8e12,
        flops=989.4e12,
        link=900e9,
        source="NVIDIA H200 Tensor Core GPU data sheet (H200 SXM); arithmetic as the H100, the same chip",
    ),
}


def find_gpu(name: str) -> Gpu:
    """Raises ConfigError naming those that are known."""
    if name not in GPUS:
        raise ConfigError(f"gpu must be one of {', '.join(GPUS)}, not {name!r}")
    return GPUS[name]
