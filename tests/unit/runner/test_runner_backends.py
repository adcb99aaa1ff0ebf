"""Which attention backend a device gets, and what is said of one that cannot run."""

import pytest
import torch

from goose_ray.assembly import choose_dtype
from goose_ray.config import GooseConfig
from goose_ray.errors import ConfigError
from goose_ray.runner.backends import BACKENDS, available_backends, new_backend
from goose_ray.runner.sdpa import SdpaBackend

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def _pretend(monkeypatch: pytest.MonkeyPatch, *, triton: bool, capability: tuple[int, int]) -> None:
    found = object() if triton else None
    monkeypatch.setattr("goose_ray.runner.backends.find_spec", lambda name: found)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def test_the_cpu_gets_sdpa_and_can_check_the_others() -> None:
    assert isinstance(new_backend("auto", CPU, torch.float32), SdpaBackend)
    assert available_backends(CPU, torch.float32) == ("flex", "sdpa")


def test_cuda_gets_the_best_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, triton=True, capability=(9, 0))
    assert available_backends(CUDA, torch.bfloat16)[0] == "flex"
    assert type(new_backend("auto", CUDA, torch.bfloat16)).__name__ == "FlexBackend"
    _pretend(monkeypatch, triton=False, capability=(9, 0))
    assert isinstance(new_backend("auto", CUDA, torch.bfloat16), SdpaBackend)


def test_a_backend_that_cannot_run_is_refused_with_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="attention_backend flex needs dtype bfloat16 or float32, not float16"):
        new_backend("flex", CPU, torch.float16)
    _pretend(monkeypatch, triton=False, capability=(9, 0))
    with pytest.raises(ConfigError, match="attention_backend flex needs the package triton"):
        new_backend("flex", CUDA, torch.bfloat16)
    _pretend(monkeypatch, triton=True, capability=(7, 5))
    with pytest.raises(ConfigError, match=r"compute capability 8\.0 or more, not 7\.5"):
        new_backend("flex", CUDA, torch.bfloat16)
    with pytest.raises(ConfigError, match="must be auto or one of flex, sdpa, not 'flash'"):
        new_backend("flash", CPU, torch.float32)


@pytest.mark.parametrize("name", ["auto", *BACKENDS])
def test_the_configuration_takes_every_backend(name: str) -> None:
    assert GooseConfig.from_args({"attention_backend": name}).attention_backend == name


def test_sixteen_bits_on_the_cpu_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_dtype("auto", CPU) == choose_dtype("float32", CPU) == torch.float32
    assert caplog.records == []
    assert choose_dtype("bfloat16", CPU) == torch.bfloat16
    assert "dtype bfloat16 on the CPU: replies may differ" in caplog.text
