"""Webhook definitions: the messages of a topic go to a URL. Pure; the gateway pushes, ``definitions`` describes.

Contract: gateway.md.
"""

import base64
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from toymq_py.errors import BadArgument, BadName
from toymq_py.names import TopicPattern, check_name, is_pattern
from toymq_py.units import check_number

NAME_MAX = 180
WEBHOOKS_MAX = 1000
CONCURRENCY_MAX = 64
TIMEOUT_MS_MAX = 60_000
SECRET_PREFIX = "whsec_"
SECRET_BYTES_MIN = 16
"""The shortest secret after the prefix; a variable that was not set left nothing there: anyone could sign. The specification
has 24 to 64."""
SECRET_CHARS_MAX = 512
SIGNED = "(set)"
"""The text that is shown instead of a secret."""
URL_LENGTH_MAX = 2048


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that may be pushed to, with its scheme, host and port."""

    url: str
    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "Target":
        """Parse a URL. Raises: BadArgument when it is not http or https, or has a user or a fragment."""
        if len(url) > URL_LENGTH_MAX or not url.isascii() or not url.isprintable() or " " in url:
            raise BadArgument(f"a URL is at most {URL_LENGTH_MAX} printable ASCII characters without space")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise BadArgument(f"invalid URL {url[:200]!a}: write http://host/path or https://host/path") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise BadArgument("a webhook pushes to an http or https URL: write https://host/path")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise BadArgument("the URL of a webhook has no user and no fragment: sign what is pushed with a secret")
        return cls(url, parts.scheme, parts.hostname, port or (443 if parts.scheme == "https" else 80))


@dataclass(frozen=True, slots=True)
class Webhook:
    """One webhook. ``topic`` may be a pattern; ``secret`` is None if requests are not signed."""

    topic: str
    url: str
    secret: str | None = None
    timeout_ms: int = 10_000
    concurrency: int = 1

    def __post_init__(self) -> None:
        """Check the fields. Raises: BadArgument, BadName."""
        if is_pattern(self.topic):
            TopicPattern(self.topic)
        else:
            check_name("topic", self.topic)
        Target.parse(self.url)
        if self.secret is not None:
            secret_bytes(self.secret)
        for name, high in (("timeout_ms", TIMEOUT_MS_MAX), ("concurrency", CONCURRENCY_MAX)):
            check_number(name, getattr(self, name), 1, high)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Webhook":
        """Parse the JSON object of a webhook. Raises: BadArgument, BadName."""
        kinds: dict[str, tuple[type, ...]] = {
            "topic": (str,), "url": (str,), "secret": (str, type(None)), "timeout_ms": (int,), "concurrency": (int,),
        }  # fmt: skip
        for name, value in found.items():
            if name not in kinds or type(value) not in kinds[name]:
                raise BadArgument(f"{name[:100]!a} is wrong: a webhook has topic and url, secret, timeout_ms, concurrency")
        if "topic" not in found or "url" not in found:
            raise BadArgument("a webhook has a topic and a url")
        return cls(**found)

    def check_secret(self) -> "Webhook":
        """Check the secret of a new definition; stored ones are not checked. Returns: the webhook. Raises: BadArgument."""
        check_new_secret(self.secret)
        return self

    def public(self) -> dict[str, Any]:
        """The fields to show: ``signed`` in place of the secret."""
        return {**asdict(self), "secret": None if self.secret is None else SIGNED}


def secret_bytes(secret: str) -> bytes:
    """The key of a secret: base64 after ``whsec_``, else the text itself. Raises: BadArgument."""
    if len(secret) <= SECRET_CHARS_MAX and secret.startswith(SECRET_PREFIX):
        try:
            return base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError:
            raise BadArgument(f"what follows {SECRET_PREFIX} is base64") from None
    if not secret or len(secret) > SECRET_CHARS_MAX:
        raise BadArgument(f"a secret has 1 to {SECRET_CHARS_MAX} characters")
    try:
        return secret.encode()
    except UnicodeEncodeError:
        raise BadArgument("the secret has half of a surrogate pair: it cannot be UTF-8") from None


def check_new_secret(secret: str | None) -> None:
    """Refuse a secret of a new definition that is too short to sign with. Raises: BadArgument."""
    if secret is not None and secret.startswith(SECRET_PREFIX):
        size = len(secret_bytes(secret))
        if size < SECRET_BYTES_MIN:
            raise BadArgument(
                f"the secret has {size} bytes behind {SECRET_PREFIX} and needs {SECRET_BYTES_MIN}: write the output of "
                "`openssl rand -base64 32` there"
            )


def check_webhook_name(name: str) -> str:
    """Check the name of a webhook. Raises: BadName."""
    check_name("webhook", name)
    if len(name) > NAME_MAX:
        raise BadName(f"the name of a webhook has at most {NAME_MAX} characters")
    return name
