"""Named brokers of one user: ``toymq/contexts.json`` under ``XDG_CONFIG_HOME`` (``~/.config``), for its owner alone.

A context has a broker's URL, and what is needed to use it: token or token file, certificates, the gateway's URL. The file is
replaced atomically.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from toymq.url import is_token, parse_urls
from toymq_py.errors import ConfigError
from toymq_py.names import some_of

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
FORM = 1
"""Of the file; another one is of a newer version."""


@dataclass(frozen=True, slots=True)
class Context:
    """One named broker. ``token`` is the token itself, ``token_file`` the path of a file that holds it."""

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    http_url: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def __post_init__(self) -> None:
        """Check the fields. Raises: ConfigError."""
        if parse_urls(self.url)[0].token is not None:
            raise ConfigError("a token in --url shows in the process list: use --with-token or --token-file")
        if self.token is not None and not is_token(self.token):
            raise ConfigError("invalid token: write one word of printable ASCII")


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts of the user, and which of them is in use."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def find(self, name: str) -> Context:
        """Return the context with a name. Raises: ConfigError."""
        if name not in self.by_name:
            there = f"there are {some_of(self.by_name)}" if self.by_name else "there are none"
            raise ConfigError(f"no context {name[:64]!a}: {there}; `toymqctl context add {name[:64]} --url URL` makes it")
        return self.by_name[name]


def check_context_name(name: str) -> str:
    """Check that a context's name is valid, and return it. Raises: ConfigError."""
    if not _NAME.match(name):
        raise ConfigError(f"invalid context {name[:64]!a}: 1 to 64 of A-Z a-z 0-9 . _ -, the first no . or -")
    return name


def path_of_contexts(environment: Mapping[str, str]) -> Path:
    """Return the path of the file with the contexts, whether it exists or not."""
    base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "toymq" / "contexts.json"


def load(path: Path) -> Contexts:
    """Read the contexts; empty without a file. Raises: ConfigError for a file that is damaged, or that other users can read;
    OSError."""
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            text = file.read()
    except FileNotFoundError:
        return Contexts()
    except UnicodeDecodeError as error:
        raise _damaged(path, str(error)) from None
    if mode & 0o077:
        raise ConfigError(f"{path} holds tokens, and other users can read it (mode {mode:o}): chmod 600 {path}")
    return _decode(path, text)


def _decode(path: Path, text: str) -> Contexts:
    try:
        found: dict[str, Any] = json.loads(text)
        if found["form"] != FORM:
            raise ConfigError(f"{path} is of another version of toymqctl (form {str(found['form'])[:20]}): use that one")
        known = {each.name for each in fields(Context)}
        by_name = {
            check_context_name(name): Context(**{key: value for key, value in entry.items() if key in known})
            for name, entry in found["contexts"].items()
        }
        current = found["current"]
        return Contexts(by_name, current if current in by_name else None)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _damaged(path, f"{type(error).__name__}: {error}") from None


def _damaged(path: Path, reason: str) -> ConfigError:
    return ConfigError(f"{path} cannot be read ({reason[:100]}): mend it, or remove it and add the contexts again")


def store(path: Path, contexts: Contexts) -> None:
    """Write the contexts, synced, in place of the old file, with mode 0600. Raises: OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    entries = {
        name: {key: value for key, value in asdict(context).items() if value is not None}
        for name, context in sorted(contexts.by_name.items())
    }
    data = json.dumps({"form": FORM, "current": contexts.current, "contexts": entries}, indent=2) + "\n"
    new = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    new.unlink(missing_ok=True)
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise
