"""`goose top`: what the dashboard shows, in a terminal."""

import json
import shutil
import sys
import time
from typing import Any

import click

from goose_ray.cli.chat_client import refusal, server_address, unreachable
from goose_ray.cli.finite import FiniteRange
from goose_ray.cli.options import api_key_option

__all__ = ["top"]

_TIMEOUT_S = 10.0
# home, and then what is left of the screen
_HOME, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[K", "\x1b[J"
_ALTERNATE_SCREEN, _USUAL_SCREEN = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"


@click.command()
@click.option(
    "--base-url",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="OPENAI_BASE_URL",
    show_envvar=True,
    help="Address of the server, with or without /v1.",
)
# what it was called before
@click.option("--url", hidden=True)
@api_key_option
@click.option("--interval", default=2.0, show_default=True, type=FiniteRange(min=0.2), help="Seconds.")
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option("--no-color", is_flag=True, help="Letters alone.")
@click.option("--json", "as_json", is_flag=True, help="Print what the server says, one JSON object a time.")
def top(
    base_url: str, url: str | None, api_key: str | None, interval: float, once: bool, as_json: bool, no_color: bool
) -> None:
    """Watch replicas, tokens per second, tau, acceptance by source and depth, and trees of recent steps.

    The same as the page /dashboard of the server. Ctrl-C ends it.

    \b
    goose top
    goose top --base-url http://head:8000 --once --json
    """
    address = server_address(url or base_url)
    full_screen = sys.stdout.isatty() and not once and not as_json
    if full_screen:
        click.echo(_ALTERNATE_SCREEN, nl=False)
    try:
        while True:
            _show(address, api_key, as_json=as_json, full_screen=full_screen, colour=not no_color, patient=not once)
            if once:
                return
            time.sleep(interval)
    except KeyboardInterrupt:
        pass
    finally:
        if full_screen:
            click.echo(_USUAL_SCREEN, nl=False)


def _show(url: str, api_key: str | None, *, as_json: bool, full_screen: bool, colour: bool, patient: bool) -> None:
    """Raises ClickException if the server cannot be asked and nobody waits for it to come back."""
    from goose_ray.telemetry.dashboard.terminal import render_live

    try:
        live = _fetch(url, api_key)
    except click.ClickException as error:
        if not patient:
            raise
        click.echo(f"{_HOME if full_screen else ''}{error.message}{_CLEAR_BELOW if full_screen else ''}", err=True)
        return
    if as_json:
        click.echo(json.dumps(live))
        return
    size = shutil.get_terminal_size()
    lines = render_live(live, width=size.columns, colour=colour and sys.stdout.isatty())
    if full_screen:
        lines = [line + _CLEAR_LINE for line in lines[: size.lines - 1]]
    click.echo((_HOME if full_screen else "") + "\n".join(lines) + (_CLEAR_BELOW if full_screen else ""))


def _fetch(url: str, api_key: str | None) -> dict[str, Any]:
    import urllib.error
    import urllib.request

    address = f"{url}/v1/goose/live"
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            live: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise refusal(address, error) from error
    except OSError as error:
        raise unreachable(url, error) from error
    except ValueError as error:
        raise click.ClickException(f"{address} cannot be read: {error}") from error
    if live.get("object") != "goose.live":
        raise click.ClickException(f"{address} is no goose server")
    return live
