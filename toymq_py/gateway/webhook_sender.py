"""Sends one signed POST to a URL after checks of its host: the only code by which the broker calls a URL from a client.

Contract: gateway.md; ADR 0056, ADR 0081. Webhooks and alerts send here. The signature is that of the Standard Webhooks
specification: HMAC-SHA256 over id, time and payload. Nothing is retried: the caller decides.
"""

import asyncio
import base64
import errno
import hmac
import ssl
from collections.abc import Mapping

from toymq_py.clock import Clock
from toymq_py.config.webhooks import Target, secret_bytes
from toymq_py.errors import BadArgument, RequestError
from toymq_py.gateway.name_lookups import NameLookups
from toymq_py.gateway.webhook_addresses import allowed_address
from toymq_py.gateway.webhook_request import client_context, post

RETRY_MIN_S = 1.0
RETRY_MAX_S = 300.0
"""The longest backoff after a failed attempt; it doubles with each, from the shortest to this."""
CHECK_S = 10.0
"""How long the lookup of a new URL's host may take."""

Lookup = asyncio.Future[list[str]]
"""The addresses of a host; shared by all that ask for it."""


def sign(secret: str, message_id: str, at_s: int, payload: bytes) -> str:
    """The value of the header ``webhook-signature``."""
    signed = f"{message_id}.{at_s}.".encode() + payload
    return "v1," + base64.b64encode(hmac.digest(secret_bytes(secret), signed, "sha256")).decode()


def backoff_s(attempt: int) -> float:
    """The wait in seconds after failed attempt number ``attempt``, from 1."""
    return min(RETRY_MIN_S * 2.0 ** min(attempt - 1, 30), RETRY_MAX_S)


class WebhookSender:
    """Sends for all webhooks and alerts, which share lookups and CA certificates. Belongs to the event loop."""

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop, *, private: bool) -> None:
        """``private``: a URL may lead to this machine or its network."""
        self.private = private
        self._clock = clock
        self._loop = loop
        self._lookups = NameLookups(loop)
        self._tls: ssl.SSLContext | None = None

    async def check(self, url: str) -> None:
        """Check that a new URL's host resolves to an allowed address. Raises: Forbidden, BadArgument."""
        target = Target.parse(url)
        try:
            async with asyncio.timeout(CHECK_S):
                addresses = await asyncio.shield(await self._lookups.begin(target.host))
        except TimeoutError:
            raise BadArgument(
                f"cannot resolve host {target.host} within {CHECK_S:.0f} s: no DNS server answers, or no thread is left"
            ) from None
        except OSError as error:
            raise BadArgument(f"cannot resolve host {target.host}: {error.strerror or error}") from None
        except UnicodeError:
            raise BadArgument(f"invalid host name {target.host!a} in the URL") from None
        allowed_address(target, addresses, private=self.private)

    async def begin_lookup(self, url: str) -> Lookup:
        """Begin to look up the URL's host, after waiting for a free thread (``NameLookups.begin``)."""
        return await self._lookups.begin(Target.parse(url).host)

    async def send(
        self, url: str, secret: str | None, timeout_ms: int, message_id: str, headers: Mapping[str, str], payload: bytes,
        lookup: Lookup | None = None,
    ) -> str | None:  # fmt: skip
        """Send once, within ``timeout_ms``.

        Args:
            secret: key of the signature, None for none.
            message_id: the id of the message, the same at each attempt.
            lookup: the lookup of the host, if it has begun.

        Returns: why it failed; None when it succeeded.
        """
        target = Target.parse(url)
        at_s = self._clock.wall_ns() // 1_000_000_000
        fields = {"user-agent": "toymq", "webhook-id": message_id, "webhook-timestamp": str(at_s), **headers}
        if secret is not None:
            fields["webhook-signature"] = sign(secret, message_id, at_s, payload)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                found = lookup if lookup is not None else await self._lookups.begin(target.host)
                address = allowed_address(target, await asyncio.shield(found), private=self.private)
                status = await post(target, address, fields, payload, await self._context(target))
        except TimeoutError:
            return f"{target.host} did not answer within {timeout_ms} ms"
        except OSError as error:
            if error.errno is None:  # not the system's: it says what answered, and how
                return str(error) or type(error).__name__
            host = f"[{target.host}]" if ":" in target.host else target.host
            return f"cannot reach {target.scheme}://{host}:{target.port}: {error.strerror or error}"  # a path may be a secret
        except (RequestError, UnicodeError) as error:
            return str(error) or type(error).__name__
        return None if 200 <= status < 300 else f"{target.host} answered {status}"

    async def _context(self, target: Target) -> ssl.SSLContext | None:
        if target.scheme == "https" and self._tls is None:
            try:
                self._tls = await self._loop.run_in_executor(None, client_context)  # 50 ms for the CA certificates
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, f"cannot read the CA certificates: {error}") from error
        return self._tls if target.scheme == "https" else None
