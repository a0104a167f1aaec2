"""Auth files for tests: the token of a name is the name with a fixed suffix."""

from hashlib import sha256
from typing import Any

from toymq_py.auth.tokens import Authority, Grant, parse_grants


def token(name: str) -> str:
    return f"{name}-secret-7f3a"


def table(name: str, rest: str = "") -> str:
    """Return a ``[[token]]`` table of an auth file; ``rest``: its other lines."""
    return f'[[token]]\nname = "{name}"\nsha256 = "{sha256(token(name).encode()).hexdigest()}"\n{rest}\n'


def grants(*tables: str) -> tuple[Grant, ...]:
    return parse_grants("".join(tables), "auth.toml")


def authority(*tables: str, **more: Any) -> Authority:
    return Authority(grants(*tables), **more)


def hello(name: str) -> bytes:
    return f"HELLO 1 auth={token(name)}\n".encode()


EVERYTHING = table("all", 'publish = [">"]\nsubscribe = [">"]\nadmin = true')
