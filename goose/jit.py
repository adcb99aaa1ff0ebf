"""Machine code where numba is installed, the same functions as plain Python where it is not.

What is decorated must therefore give the same result both ways: no arithmetic that leaves 62 bits, `int(...)` and
`float(...)` around what is read from a narrow array before it is added to or compared with anything (numpy's narrow
scalars would decide the precision), and `math` instead of numpy for scalars. It allocates nothing: without numba's
runtime no references are counted, which took three quarters of the time where many arrays are passed on.

Compiled code is kept on disk beside the source. numba looks only at the file a function stands in: after a change of
a function that another file calls, delete `__pycache__` (`make clean` does).
"""

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["jit", "needs_compilation"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    numba = None


def jit(function: FunctionT) -> FunctionT:
    """Compiles at the first call with arguments of new types. The result behaves like `function`, only faster."""
    if numba is None:
        return function
    compiled: FunctionT = numba.njit(cache=True, error_model="numpy", _nrt=False)(function)
    return compiled


def needs_compilation(function: Callable[..., Any]) -> bool:
    """Whether `jit` will compile `function` at its next call. Never where numba is missing or told not to compile."""
    signatures: list[object] | None = getattr(function, "signatures", None)
    return signatures is not None and not signatures
