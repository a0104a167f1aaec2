"""``toymqctl context``: named brokers, so that a command needs no ``--url``."""

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from toymq.url import parse_urls
from toymqctl.contexts import Context, Contexts, check_context_name, load, path_of_contexts, store
from toymqctl.tables import as_json as json_option
from toymqctl.tables import print_json, screen_room, table

_COLUMNS = ("in use", "context", "url", "token", "gateway")
IN_USE = "*"


@click.group()
def context() -> None:
    """Name brokers, and choose the one that commands go to.

    \b
        toymqctl context add prod --url toymqs://mq.example.com:6789 --with-token < token
        toymqctl context use prod
        toymqctl topics                        asks prod
        toymqctl --context staging topics      asks another one, this once
        toymqctl context list

    A URL wins over contexts: with --url no context is used, and with TOYMQ_URL only one that --context names. TOYMQ_CONTEXT
    chooses a context for a shell. The file, toymq/contexts.json under XDG_CONFIG_HOME or ~/.config, is readable by its owner
    alone.
    """


def _changed(change: Callable[[Contexts], Contexts]) -> None:
    path = path_of_contexts(os.environ)
    store(path, change(load(path)))


@context.command()
@click.argument("name")
@click.option("--url", required=True, help="URL of the broker, or of the nodes of a cluster; without a token.")
@click.option("--http-url", help="URL of its HTTP gateway, where the broker does not tell the right one (a proxy).")
@click.option("--with-token", is_flag=True, help="Read the token from stdin, and keep it in the file.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="Keep the path of the token's file.")
@click.option("--tls-ca", type=click.Path(exists=True, dir_okay=False), help="PEM file of the CA, for toymqs://.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False), help="PEM file of a client certificate.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False), help="PEM file of its key.")
@click.option("--use", "use_it", is_flag=True, help="Use it from now on.")
def add(name: str, *, url: str, http_url: str | None, with_token: bool, use_it: bool, **files: Any) -> None:
    """Add the context NAME, or replace it. The first one is used from then on.

    The broker is not asked: `toymqctl --context NAME doctor` does.
    """
    check_context_name(name)
    if with_token and files["token_file"] is not None:
        raise click.UsageError("--with-token and --token-file exclude each other")
    if not parse_urls(url)[0].tls and any(files[option] for option in ("tls_ca", "tls_cert", "tls_key")):
        raise click.UsageError("options of TLS belong to a broker with TLS: --url toymqs://host:port")
    paths = {option: str(Path(path).absolute()) for option, path in files.items() if path is not None}
    added = Context(url, _token_of_stdin() if with_token else None, http_url=http_url, **paths)

    def change(contexts: Contexts) -> Contexts:
        current = name if use_it or not contexts.by_name else contexts.current
        return replace(contexts, by_name={**contexts.by_name, name: added}, current=current)

    _changed(change)
    click.echo(f"added {name}: {url}")


def _token_of_stdin() -> str:
    """Read the token from stdin. Raises: UsageError when there is none."""
    token = click.prompt("token", hide_input=True, err=True) if sys.stdin.isatty() else sys.stdin.readline()
    if not token.strip():
        raise click.UsageError("--with-token reads the token from stdin, and there was none")
    return str(token).strip()


@context.command()
@click.argument("name")
def use(name: str) -> None:
    """Use the context NAME from now on. `-` for none."""

    def change(contexts: Contexts) -> Contexts:
        if name != "-":
            contexts.find(name)
        return replace(contexts, current=None if name == "-" else name)

    _changed(change)
    click.echo("no context is used" if name == "-" else f"using {name}")
    if os.environ.get("TOYMQ_URL"):
        click.echo("toymqctl: TOYMQ_URL is set and wins over contexts", err=True)


@context.command("list")
@json_option
def list_contexts(*, as_json: bool) -> None:
    """List the contexts; * marks the one in use.

    Commands without --url and --context go to it; `toymqctl context use NAME` chooses another. Tokens are not shown.
    """
    contexts = load(path_of_contexts(os.environ))
    if as_json:
        print_json(
            {"context": name, "url": each.url, "token": _token(each), "http_url": each.http_url,
             "current": name == contexts.current}
            for name, each in sorted(contexts.by_name.items())
        )  # fmt: skip
    elif contexts.by_name:
        rows = [
            (IN_USE if name == contexts.current else "", name, each.url, _token(each), each.http_url or "-")
            for name, each in sorted(contexts.by_name.items())
        ]
        click.echo(table([_COLUMNS, *rows], text=(0, 1, 2, 3, 4), room=screen_room()))
    else:
        click.echo("no contexts: `toymqctl context add NAME --url URL` makes one")


def _token(found: Context) -> str:
    if found.token is not None:
        return "(set)"
    return "-" if found.token_file is None else f"in {found.token_file}"


@context.command()
@click.argument("name")
def remove(name: str) -> None:
    """Remove the context NAME, with its token."""

    def change(contexts: Contexts) -> Contexts:
        contexts.find(name)
        rest = {other: each for other, each in contexts.by_name.items() if other != name}
        return Contexts(rest, None if contexts.current == name else contexts.current)

    _changed(change)
    click.echo(f"removed {name}")
