"""The exceptions of the speculation library.

GooseError
├── InvalidSnapshotError  a snapshot of counts, or a file, has another shape
├── InvalidTreeError      a tree's arrays do not describe a tree
├── RequestStateError     a request was started twice, or used before its start or after its stop
└── UnknownNameError      no policy or source of that name is registered
"""

__all__ = ["GooseError", "InvalidSnapshotError", "InvalidTreeError", "RequestStateError", "UnknownNameError"]


class GooseError(Exception):
    """Root of everything the library raises on purpose."""


class InvalidSnapshotError(GooseError, ValueError):
    """A snapshot of counts, or a file, is not what its reader expects; the message names the field or the path."""


class InvalidTreeError(GooseError, ValueError):
    """A tree's arrays do not describe a rooted tree in parent-before-child order."""


class RequestStateError(GooseError, RuntimeError):
    """A lifecycle verb was called out of order; the message names the request."""


class UnknownNameError(GooseError, KeyError):
    """No policy or source is registered under that name; the message lists those that are."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""
