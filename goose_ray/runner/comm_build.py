"""Builds DeepSpeed's shared-memory all-reduce, once a machine, environment and version of torch. Knows no ranks.

It is C++ that DeepSpeed compiles when it is first needed: half a minute, with ninja and a compiler. Here so that what
is missing is named, and so that a build that was killed does not make all later ones wait for its lock.
"""

import hashlib
import shutil
import sys
import sysconfig
from collections.abc import Callable

import torch
from filelock import FileLock
from torch.utils import cpp_extension

from goose_ray.config import cache_dir
from goose_ray.errors import ModelLoadError

__all__ = ["build_environment", "build_shared_memory_op"]


def build_environment() -> dict[str, str]:
    """What the process that builds needs in its environment from its start; `${PATH}` is its own."""
    python = f"py{sys.version_info.major}{sys.version_info.minor}"
    # The compiler is told of this folder, so that environments that share one build would undo each other's.
    environment = hashlib.sha256(sysconfig.get_path("purelib").encode()).hexdigest()[:8]
    return {
        # Compiled against one torch, it does not run with another.
        "TORCH_EXTENSIONS_DIR": str(
            cache_dir() / "torch_extensions" / f"torch-{torch.__version__}-{python}-{environment}"
        ),
        # ninja, where pip has put it
        "PATH": f"{sysconfig.get_path('scripts')}:${{PATH}}",
    }


def build_shared_memory_op(load: Callable[[], object]) -> None:
    """`load` builds it, where it is not built, and loads it. Raises ModelLoadError naming what is missing or what the
    compiler said.
    """
    compiler: str = cpp_extension.get_cxx_compiler()  # type: ignore[no-untyped-call]
    for tool, remedy in (
        ("ninja", "pip install ninja"),
        (compiler, "install g++, or name another compiler in CXX"),
    ):
        if shutil.which(tool) is None:
            raise ModelLoadError(
                f"tensor parallelism on the CPU needs {tool} to build DeepSpeed's shared-memory collective: {remedy}"
            )
    root = cache_dir() / "torch_extensions"
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / ".lock"):
        for stale in root.glob("**/lock"):
            # Of a build that was killed: whoever builds holds our lock.
            stale.unlink()
        try:
            load()
        except (RuntimeError, OSError, ImportError) as error:
            raise ModelLoadError(f"DeepSpeed's shared-memory collective could not be built: {error}") from error
