"""Our log records where Serve writes its own: the replica's log file and the console."""

import logging

__all__ = ["log_through_serve"]

_SERVE_LOGGER = "ray.serve"
_OUR_LOGGERS = ("goose", "goose_ray")


def log_through_serve() -> None:
    """Called once a Serve process, when Serve has set its logger up. Changes our two top loggers."""
    serve_logger = logging.getLogger(_SERVE_LOGGER)
    for name in _OUR_LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = list(serve_logger.handlers)
        logger.setLevel(serve_logger.level)
        logger.propagate = False
