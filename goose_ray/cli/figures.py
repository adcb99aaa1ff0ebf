"""Numbers as commands print them."""

from typing import Any

__all__ = ["rounded"]


def rounded(value: Any, digits: int) -> Any:
    """The same JSON value with its floats rounded."""
    if isinstance(value, dict):
        return {name: rounded(part, digits) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part, digits) for part in value]
    return round(value, digits) if isinstance(value, float) else value
