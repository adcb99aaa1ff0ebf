"""`goose bench`: measure."""

import click

__all__ = ["bench"]


@click.group()
def bench() -> None:
    """Measure acceptance, exactness and speed."""
