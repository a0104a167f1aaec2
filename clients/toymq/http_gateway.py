"""An HTTP client of a broker's gateway, for the command lines: the wire has no command for webhooks, alerts and connections.

Requests and answers are JSON. The client follows no redirect and uses no proxy of the environment: another host would get the
token.
"""

import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from toymq.url import Address
from toymq_py.errors import REQUEST_ERRORS, ConfigError, LocalError, Moved, RequestError

TIMEOUT_S = 30.0


class GatewayFailed(LocalError):
    """No gateway listens at the URL, or what answers is not a gateway."""

    code = "GATEWAY_FAILED"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A urllib handler that follows no redirect."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpGateway:
    """An HTTP client of one gateway. Its errors never contain the token."""

    def __init__(self, url: str, token: str | None, tls: ssl.SSLContext | None = None) -> None:
        """``tls``: the context for an https URL; None trusts the system's CAs. Raises: ConfigError."""
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"invalid --http-url {url!a}: write http://host:port")
        self.url = url.rstrip("/")
        self._token = token
        handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), _NoRedirect()]
        if tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=tls))
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, method: str, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> Any:
        """Send a request, and return the JSON of the answer; None for an answer without a body.

        Raises: RequestError with the code of the answer; GatewayFailed when no gateway answers.
        """
        headers = {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.url + path, data, headers, method=method)
            with self._opener.open(request, timeout=timeout_s) as answer:
                found = answer.read()
                return json.loads(found) if found else None
        except urllib.error.HTTPError as error:
            raise self._refusal(error) from None
        except (HTTPException, ValueError) as error:
            raise GatewayFailed(f"cannot ask {self.url}: the answer is not that of a gateway") from error
        except OSError as error:
            raise GatewayFailed(f"cannot ask {self.url}: {getattr(error, 'reason', None) or error}") from error

    def _refusal(self, answer: urllib.error.HTTPError) -> RequestError | GatewayFailed:
        with answer, contextlib.suppress(ValueError, AttributeError, OSError):
            problem = json.load(answer)
            if isinstance(code := problem.get("code"), str):
                kind = REQUEST_ERRORS.get(code, RequestError)
                plain = kind.__init__ is RequestError.__init__  # others are made of more than a text
                refusal = (kind if plain else RequestError)(str(problem.get("detail")))
                refusal.code = code  # the gateway has codes that the wire has not
                return refusal
        return GatewayFailed(f"{self.url} answers {answer.code}: is a gateway there?")


def told_by(cluster: Mapping[str, Any], worker: int = 0) -> list[str] | None:
    """Return the gateway URLs, for ``choose``, in an answer to CLUSTER. One process alone answers it, so it comes even while
    others are away.

    Args:
        worker: the worker whose gateway is wanted, if there are several; each worker knows the URLs of all.

    Returns: None for an older broker, which does not tell its URLs.
    """
    if workers := cluster.get("workers"):
        return [url for scheme in ("https://", "http://") for url in workers[worker] if url.startswith(scheme)]
    gateways: list[str] | None = cluster.get("gateways")
    return gateways


def choose(gateways: Sequence[str] | None, address: Address, needs_it: str) -> str:
    """Return the URL of the gateway to ask, out of those that a broker listens on.

    Args:
        gateways: ``gateways`` of STATS: URLs as they are bound, those with TLS first; None for a broker that does not tell
            them.
        needs_it: begins the text of an error: what is available only over HTTP.

    Raises: ConfigError when there is none, or none with TLS for a broker that is reached over TLS on another machine: the token
        would cross the network in the clear.
    """
    if gateways is None:
        raise ConfigError(f"{needs_it}, and this broker does not tell where its gateway listens: name it with --http-url")
    if not gateways:
        raise ConfigError(f"{needs_it}, and this broker has no gateway: start it with --http 127.0.0.1:7800")
    url = gateways[0]
    if address.tls and not url.startswith("https:") and not _is_loopback(address.host):
        raise ConfigError(
            f"{needs_it}, and the gateway of this broker has no TLS: start it with --https, or name {url} with --http-url "
            "to send the token in the clear"
        )
    return _reachable(url, address)


def named_in(moved: Moved, asked: str) -> str | None:
    """Return the gateway URL that a MOVED names. None if it names none, or none with TLS when the client asked over TLS: the
    token would cross the network in the clear."""
    words = str(moved).partition(" (")[0].split(" ")
    named = [word for word in words if word.startswith(("https://", "http://"))]
    scheme = urlsplit(asked).scheme
    fitting = [url for url in named if urlsplit(url).scheme == scheme] or ([] if scheme == "https" else named)
    return fitting[0] if fitting else None


def _reachable(url: str, address: Address) -> str:
    """Return a URL that the client can reach: a wildcard host (0.0.0.0 or ::) is replaced by the host at which the client
    reaches the broker."""
    parts = urlsplit(url)
    if not address.host or not _is_any(parts.hostname or ""):
        return url
    host = f"[{address.host}]" if ":" in address.host else address.host
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port}"))


def _is_any(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
