"""Python, packages, the compiler that DeepSpeed needs on the CPU, and GPUs with what runs on them."""

import shutil
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version

from packaging.requirements import Requirement

from goose_ray.cli.checks.finding import Finding, Verdict
from goose_ray.config import GooseConfig

__all__ = ["check_compiler", "check_gpus", "check_packages", "check_python"]

_DISTRIBUTION = "goose-ray"
_OLDEST_PYTHON = (3, 11)


def check_python() -> Finding:
    found = f"{sys.version.split()[0]} ({sys.executable})"
    if sys.version_info < _OLDEST_PYTHON:
        return Finding("python", Verdict.FAIL, found, "install Python 3.11 or newer")
    return Finding("python", Verdict.OK, found)


def check_packages(extra: str, *, needed: bool = True) -> Finding:
    """Whether what goose requires for `extra` is installed, in versions that it was written for."""
    subject = f"packages: {extra}"
    wanted = {requirement.name: requirement for requirement in _requirements(extra)}
    wrong = [problem for requirement in wanted.values() if (problem := _problem(requirement))]
    if extra not in (metadata(_DISTRIBUTION).get_all("Provides-Extra") or ()):
        wrong = [f"this installation of {_DISTRIBUTION} is older than its code"]
    if not wrong:
        return Finding(subject, Verdict.OK, f"{len(wanted)} as required")
    remedy = f"pip install '{_DISTRIBUTION}[{extra}]'"
    return Finding(subject, Verdict.FAIL if needed else Verdict.WARN, "; ".join(wrong), remedy)


def check_compiler(config: GooseConfig) -> Finding:
    """DeepSpeed compiles its collective for ranks on the CPU, once a machine."""
    from torch.utils.cpp_extension import get_cxx_compiler

    compiler: str = get_cxx_compiler()  # type: ignore[no-untyped-call]
    with_pip = f"{sysconfig.get_path('scripts')}"
    tools = {compiler: shutil.which(compiler), "ninja": shutil.which("ninja") or shutil.which("ninja", path=with_pip)}
    lacking = [tool for tool, path in tools.items() if path is None]
    if not lacking:
        return Finding("compiler", Verdict.OK, ", ".join(str(path) for path in tools.values()))
    needed = config.tensor_parallel_size > 1 and config.device != "cuda" and not _sees_gpus()
    remedy = "install g++ (or name another compiler in CXX) and `pip install ninja`"
    if not needed:
        remedy += ", if you want several ranks on the CPU"
    return Finding("compiler", Verdict.FAIL if needed else Verdict.WARN, f"no {' and no '.join(lacking)}", remedy)


def check_gpus(config: GooseConfig) -> Finding:
    import torch

    if not _sees_gpus():
        wanted = config.device == "cuda"
        if shutil.which("nvidia-smi") is None:
            remedy = "run it where GPUs are, or say device: auto" if wanted else ""
            return Finding("gpus", Verdict.FAIL if wanted else Verdict.OK, "none; the CPU serves", remedy)
        found = f"nvidia-smi is here, but torch {torch.__version__} sees no GPU"
        remedy = "check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that torch is a build for CUDA (torch.version.cuda)"
        return Finding("gpus", Verdict.FAIL if wanted else Verdict.WARN, found, remedy)
    count = torch.cuda.device_count()
    named = ", ".join(sorted({torch.cuda.get_device_name(number) for number in range(count)}))
    has_nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    nccl = ".".join(map(str, torch.cuda.nccl.version())) if has_nccl else "none"  # type: ignore[no-untyped-call]
    found = f"{count} x {named}, CUDA {torch.version.cuda}, NCCL {nccl}"
    ranks = config.tensor_parallel_size
    if ranks > 1 and config.device != "cpu":
        if nccl == "none":
            return Finding("gpus", Verdict.FAIL, found, "ranks reduce by NCCL: install a build of torch that has it")
        if ranks > count:
            # other machines of a cluster may have the rest
            remedy = f"a replica needs {ranks} GPUs: take fewer ranks, or a cluster that has as many"
            return Finding("gpus", Verdict.WARN, found, remedy)
    return Finding("gpus", Verdict.OK, found)


def _sees_gpus() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _requirements(extra: str) -> Iterator[Requirement]:
    """What the extra asks for, with what every installation needs."""
    for text in requires(_DISTRIBUTION) or ():
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield requirement


def _problem(requirement: Requirement) -> str | None:
    try:
        found = version(requirement.name)
    except PackageNotFoundError:
        return f"no {requirement.name}"
    if requirement.specifier.contains(found, prereleases=True):
        return None
    return f"{requirement.name} {found} is not {requirement.specifier}"
