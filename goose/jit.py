"""Machine code where numba is installed, the same functions as plain Python where it is not.

What is decorated must therefore give the same result both ways: no arithmetic that leaves 62 bits, `int(...)` and
`float(...)` around what is read from a narrow array before it is added to or compared with anything (numpy's narrow
scalars would decide the precision), and `math` instead of numpy for scalars. It allocates nothing: without numba's
runtime no references are counted, which took three quarters of the time where many arrays are passed on.

Compiled code is kept on disk beside the source. numba looks only at the file a function stands in: after a change of
a function that another file calls, delete `__pycache__` (`make clean` does).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["inlined", "jit", "needs_compilation", "prefetch", "writable"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

try:
    import numba
except ImportError:
    numba = None


def jit(function: FunctionT) -> FunctionT:
    """Compiles at the first call with arguments of new types. The result behaves like `function`, only faster.

    It runs without the interpreter's lock: what it changes, no other thread may touch meanwhile.
    """
    return function if numba is None else _compiled(function)


def inlined(function: FunctionT) -> FunctionT:
    """Like `jit`, and put into whatever calls it: handing over a workspace takes as many moves as its arrays have
    fields, some four hundred.
    """
    return function if numba is None else _compiled(function, forceinline=True)


def needs_compilation(function: Callable[..., Any]) -> bool:
    """Whether `jit` will compile `function` at its next call. Never where numba is missing or told not to compile."""
    signatures: list[object] | None = getattr(function, "signatures", None)
    return signatures is not None and not signatures


def _compiled(function: FunctionT, **options: bool) -> FunctionT:
    compiled: FunctionT = numba.njit(nogil=True, error_model="numpy", _nrt=False, **options)(function)
    _keep_on_disk(compiled)
    return compiled


def _keep_on_disk(compiled: Any) -> None:
    """If it can be: with a full disk, or no place to write to, every process compiles for itself."""
    if numba.config.DISABLE_JIT:
        return
    try:
        compiled.enable_caching()
    except RuntimeError:
        # no directory that can be written
        return
    save = compiled._cache.save_overload

    def save_or_leave(signature: Any, overload: Any) -> None:
        with suppress(OSError):
            save(signature, overload)

    compiled._cache.save_overload = save_or_leave


def writable(array: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """The array, or a copy if need be: what may not be written is of another type, and compiled for once more."""
    return np.require(array, dtype, ("C_CONTIGUOUS", "WRITEABLE"))


def _prefetch_nothing(array: Any, first: int, second: int) -> None:
    return None


def _compiled_prefetch() -> Callable[[Any, int, int], None]:
    from llvmlite import ir
    from numba.core import cgutils, types
    from numba.np.arrayobj import make_array

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = make_array(signature.args[0])(context, builder, arguments[0])
        item = cgutils.get_item_pointer(context, builder, signature.args[0], array, arguments[1:], wraparound=False)
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        instruction = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # For reading; into the second cache, because a tree asks for more than the first holds; of data.
        builder.call(instruction, [builder.bitcast(item, pointer), number(0), number(2), number(1)])
        return context.get_dummy_value()

    def prefetch(typing_context: Any, array: Any, first: Any, second: Any) -> Any:
        return types.void(array, types.intp, types.intp), generate

    compiled: Callable[[Any, int, int], None] = numba.extending.intrinsic(prefetch)
    return compiled


# prefetch(array, i, j): a hint that `array[i, j]` will be read soon, for compiled functions; both indices in range.
prefetch = _prefetch_nothing if numba is None or numba.config.DISABLE_JIT else _compiled_prefetch()
