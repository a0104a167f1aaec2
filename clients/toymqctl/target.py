"""Decides which broker a command uses: ``--url`` or ``--context``, else ``TOYMQ_URL``, ``TOYMQ_CONTEXT``, the context in use.

The first of these that is set decides alone: with a URL nothing of a context is used, so that a context's token goes to no
other broker. ``TOYMQ_TOKEN``, ``--token-file`` and the TLS options override those of a context.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import click
from click.core import ParameterSource

from toymq.url import DEFAULT_URL, address_with_token, split_url
from toymqctl.broker import Broker, Certificates
from toymqctl.contexts import Context, load, path_of_contexts


@dataclass(frozen=True, slots=True)
class Target:
    """The options about the broker on the command line and in the environment; None for those not given.

    Attributes:
        url: the value of ``--url``; ``url_of_environment`` is that of ``TOYMQ_URL``, which may hold a token.
        context: the name given by ``--context``.
    """

    url: str | None = None
    url_of_environment: str | None = None
    context: str | None = None
    http_url: str | None = None
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def _context(self) -> Context | None:
        """Return the context that applies; None if none does. Raises: ConfigError, OSError."""
        if self.url is not None or (self.url_of_environment is not None and self.context is None):
            return None
        contexts = load(path_of_contexts(self.environment))
        name = self.context or self.environment.get("TOYMQ_CONTEXT") or contexts.current
        return None if name is None else contexts.find(name)

    def broker(self) -> Broker:
        """Return the command's broker. Raises: ConfigError, OSError."""
        context = self._context()
        if context is None:
            context = Context(DEFAULT_URL)
            url = self.url or self.url_of_environment or DEFAULT_URL
        else:
            url = context.url
        token, token_file = self.token, self.token_file
        if token is None and token_file is None:
            token, token_file = context.token, context.token_file
        certificates = Certificates(
            self.tls_ca or context.tls_ca, self.tls_cert or context.tls_cert, self.tls_key or context.tls_key
        )
        address, *others = (address_with_token(each, token, token_file) for each in split_url(url))
        return Broker(address, certificates, tuple(others), self.http_url or context.http_url)


def target_of(root: click.Context) -> Target:
    """Collect the options of the root command and the environment."""
    found = dict(root.params)
    url = found.pop("url", None)
    is_typed = root.get_parameter_source("url") is ParameterSource.COMMANDLINE
    return Target(url=url if is_typed else None, url_of_environment=None if is_typed else url, **found)
