"""Options that take as many values as follow: `--nodes 16 32 60`, where click takes one an occurrence."""

import click

__all__ = ["ManyValuesCommand"]


class ManyValuesCommand(click.Command):
    """Reads `--name a b c` as `--name a --name b --name c`, for its options declared `multiple`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        many = {name for option in self.params if getattr(option, "multiple", False) for name in option.opts}
        repeated: list[str] = []
        current: str | None = None
        for argument in args:
            if argument.startswith("-"):
                current = argument if argument in many else None
                repeated.append(argument)
            elif current is not None and repeated[-1] != current:
                repeated += [current, argument]
            else:
                repeated.append(argument)
        return super().parse_args(ctx, repeated)
