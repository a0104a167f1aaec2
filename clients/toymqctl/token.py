"""``toymqctl token``: tokens for the broker's auth file (clients.md). Talks to no broker."""

import hashlib
import json
import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import click

from toymq_py.errors import BadName, ConfigError
from toymq_py.names import check_name, check_topic_or_pattern
from toymq_py.text_files import parse_toml, read_text
from toymq_py.units import parse_duration_ms

TOKEN_BYTES = 32
"""Random bytes of a token: too many to guess, so that a plain digest is safe to store."""


@click.group()
def token() -> None:
    """Create tokens for the broker's auth file."""


@token.command(short_help="Create a token, and print it once.")
@click.argument("name")
@click.option("--publish", "publish", multiple=True, metavar="PATTERN", help="May publish: orders, orders.*, orders.>.")
@click.option("--subscribe", "subscribe", multiple=True, metavar="PATTERN", help="May read, ack and fetch.")
@click.option(
    "--admin", is_flag=True,
    help="May create, configure, delete, purge, seek, forget and redrive every topic; neither publish nor read.",
)
@click.option("--expires", metavar="WHEN", help="When: 90d from now, a day, 2027-01-31 (UTC), or 2027-01-31T12:00:00Z.")
@click.option("--certificate", is_flag=True, help="A client certificate with this name stands for it (AMQP, EXTERNAL).")
@click.option("--file", "path", type=click.Path(dir_okay=False), help="Append it to this auth file; a missing file is created.")
def create(
    *, name: str, publish: tuple[str, ...], subscribe: tuple[str, ...], admin: bool, expires: str | None, certificate: bool,
    path: str | None,
) -> None:  # fmt: skip
    """Create a token NAME and print it once: the auth file holds only its digest.

    Without --file it also prints the lines for the auth file. A wildcard does not match dead letters: add orders.*.dlq.

    \b
        toymqctl token create billing --publish 'orders.*' --subscribe 'orders.>' --file auth.toml
        kill -HUP PID-OF-THE-BROKER
    """
    if path == "":
        raise ConfigError("--file '' names no file: leave it out, or name the auth file")
    _check("NAME", name, lambda text: check_name("token", text))
    for option, patterns in (("--publish", publish), ("--subscribe", subscribe)):
        for pattern in patterns:
            _check(option, pattern, check_topic_or_pattern)
    ends = None if expires is None else expiry(expires)
    made = secrets.token_urlsafe(TOKEN_BYTES)
    digest = hashlib.sha256(made.encode()).hexdigest()
    lines = ["[[token]]", f'name = "{name}"', f'sha256 = "{digest}"']
    rights = {"publish": list(dict.fromkeys(publish)), "subscribe": list(dict.fromkeys(subscribe))}
    lines += [f"{key} = {json.dumps(patterns)}" for key, patterns in rights.items() if patterns]
    if admin:
        lines.append("admin = true")
    if certificate:
        lines.append("certificate = true")
    if ends is not None:
        lines.append(f"expires = {ends:%Y-%m-%dT%H:%M:%SZ}")
    table = "\n".join(lines) + "\n"
    if path is None:
        click.echo(f"{made}\n\n{table}", nl=False)
    else:
        append(path, name, table)
        click.echo(made)
        click.echo(f"toymqctl: {path} has its digest; a broker that runs reads it again on SIGHUP", err=True)
    if not (publish or subscribe or admin):
        click.echo(f"toymqctl: {name} may do nothing: rights are --publish, --subscribe and --admin", err=True)
    elif admin and not (publish or subscribe):
        click.echo(f"toymqctl: {name} may neither publish nor read messages: --admin does not include these", err=True)


def _check(option: str, text: str, check: Callable[[str], str]) -> None:
    """Check the text of an option with ``check``. Raises: ConfigError, which names the option."""
    try:
        check(text)
    except BadName as error:
        remedy = f"; write {option} once for each" if option != "NAME" and ("," in text or " " in text) else ""
        raise ConfigError(f"{option} {text!r}: {error}{remedy}") from None


def expiry(text: str) -> datetime:
    """Parse the end of a token's validity: ``90d`` (from now), ``2027-01-31``, or a date and time with its zone. Raises:
    ConfigError when it is invalid or over."""
    now = datetime.now(UTC)
    ends = _find_time(text, now)
    if ends is None:
        what = "a time from now with its unit, 90d, at most ten years; a day, 2027-01-31; or a time, 2027-01-31T12:00:00Z"
        raise ConfigError(f"--expires {text!r}: write {what}")
    if ends <= now:
        raise ConfigError(f"--expires {text!r} is in the past: write a later time")
    return ends


def _find_time(text: str, now: datetime) -> datetime | None:
    with suppress(ValueError):
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    with suppress(ValueError, OverflowError):
        found = datetime.fromisoformat(text)
        return None if found.tzinfo is None else found.astimezone(UTC)
    with suppress(ConfigError):
        return None if text.isdigit() else now + timedelta(milliseconds=parse_duration_ms(text))  # 90 would be 90 ms
    return None


def append(path: str, name: str, table: str) -> None:
    """Append a ``[[token]]`` to an auth file, atomically. An existing file keeps its owner and mode; a new file is readable by
    its owner alone.

    Raises: ConfigError (invalid auth file, name already present, or another process is changing it), OSError.
    """
    target = Path(os.path.realpath(path))  # a link stays one
    new = target.with_name(target.name + ".new")
    try:
        number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{new} exists: another process is changing {path}; remove it if that one was killed") from None
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None  # the file that was asked for
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            before = _read(target, name)
            if before is not None:
                known = target.stat()
                if known.st_uid != os.geteuid() or known.st_gid != os.getegid():
                    os.fchown(number, known.st_uid, known.st_gid)
                os.fchmod(number, known.st_mode & 0o7777)
            file.write(f"{before.rstrip()}\n\n{table}" if before else table)
            file.flush()
            os.fsync(number)
        new.replace(target)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
    directory = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _read(target: Path, name: str) -> str | None:
    """Return the text of an auth file, after checking that it has no token with that name; None if there is no file. Raises:
    ConfigError."""
    if not target.exists():
        return None
    text = read_text(str(target), "the auth file")
    try:
        names = [table.get("name") for table in parse_toml(text, str(target)).get("token", [])]
    except (ConfigError, AttributeError, TypeError):
        raise ConfigError(f"invalid auth file {target}: expected [[token]] tables in TOML; nothing was written") from None
    if name in names:
        raise ConfigError(f"{target} already has a token {name}: choose another name; nothing was written")
    return text
