"""`goose keys`: API keys, of which a file keeps the hashes."""

import json
from pathlib import Path

import click

from goose_ray.cli.group import Group

__all__ = ["keys"]

_FILE = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="GOOSE_API_KEYS_FILE",
    show_envvar=True,
    required=True,
    help="File of keys.",
)
_LIMIT = click.IntRange(min=1)


@click.group(cls=Group)
def keys() -> None:
    """Make, list and revoke API keys.

    The server reads the file that `api_keys_file` of its configuration, or GOOSE_API_KEYS_FILE, names, and reads it
    again within a second or two when it has changed.
    """


@keys.command()
@_FILE
@click.option("--name", required=True, help="Whose it is. Keys of one name share limits and caches.")
@click.option("--max-concurrent-requests", type=_LIMIT, help="Requests at once; default: no limit.")
@click.option("--requests-per-minute", type=_LIMIT, help="Default: no limit.")
@click.option("--tokens-per-minute", type=_LIMIT, help="Of prompts and answers; default: no limit.")
def new(
    path: Path,
    name: str,
    max_concurrent_requests: int | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
) -> None:
    """Make a key, print it once, and add its hash to the file.

    \b
    goose keys new --file keys.jsonl --name alice
    goose keys new --file keys.jsonl --name batch --tokens-per-minute 100000
    """
    from pydantic import ValidationError

    from goose_ray.api.auth.api_key import ApiKey, hash_of, new_key
    from goose_ray.api.auth.key_file import append_key

    plain = new_key()
    try:
        key = ApiKey(
            name=name,
            sha256=hash_of(plain),
            max_concurrent_requests=max_concurrent_requests,
            requests_per_minute=requests_per_minute,
            tokens_per_minute=tokens_per_minute,
        )
    except ValidationError:
        raise click.BadParameter(
            f"must be 1 to 64 letters, digits, _, ., @ and -, not {name!r}", param_hint="--name"
        ) from None
    append_key(path, key)
    click.echo(plain)
    click.echo(f"Its hash is in {path}. It is shown this once; keep it.", err=True)


@keys.command("list")
@_FILE
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a key.")
def list_keys(path: Path, as_json: bool) -> None:
    """Show the names and limits of the keys in the file.

    \b
    goose keys list --file keys.jsonl
    """
    from goose_ray.api.auth.key_file import read_keys

    for key in read_keys(path):
        shown = key.model_dump(exclude_none=True)
        if as_json:
            click.echo(json.dumps(shown))
            continue
        limits = [f"{field}={value}" for field, value in shown.items() if field not in ("name", "sha256")]
        click.echo("  ".join([key.name, f"sha256 {key.sha256[:12]}…", *limits]))


@keys.command()
@_FILE
@click.option("--name", required=True, help="All keys of this name.")
def revoke(path: Path, name: str) -> None:
    """Take keys out of the file. Requests under way are answered to their end.

    \b
    goose keys revoke --file keys.jsonl --name alice
    """
    from goose_ray.api.auth.key_file import revoke_keys

    count = revoke_keys(path, name)
    if not count:
        raise click.ClickException(f"{path} has no key named {name!r}")
    click.echo(f"revoked: {count} of {name}")
