"""``connect`` of the asyncio client, with its arguments."""

import ssl as ssl_module
from collections.abc import Sequence
from random import Random

from toymq.arguments import Seconds
from toymq.client import Client
from toymq.keyword_hints import hinted
from toymq.options import InjectHeaders, MessageTracing, OnEvent, Options, times
from toymq.url import DEFAULT_URL, parse_urls


@hinted
def connect(
    urls: str | Sequence[str] = DEFAULT_URL, *, token: str | None = None, name: str | None = None,
    ssl: ssl_module.SSLContext | None = None, timeout_s: Seconds = 30.0, connect_timeout_s: Seconds = 5.0,
    wait_s: Seconds | None = None, backoff_min_s: Seconds = 0.05, backoff_max_s: Seconds = 5.0, idempotent: bool = True,
    on_event: OnEvent | None = None, inject_headers: InjectHeaders | None = None, tracing: MessageTracing | None = None,
    describe_errors: bool = True, random: Random | None = None,
) -> Client:  # fmt: skip
    """Create a client; ``async with connect(...) as mq`` or ``mq = await connect(...)`` connects it. At the end of its block
    the client drains for up to 5 s and closes.

    Args:
        urls: ``toymq://[token@]host[:port]``, ``toymqs://`` for TLS, ``unix:PATH`` for a Unix socket; several, or one with
            several hosts, ``toymq://a,b``, are tried in turn. In a cluster the client goes on to the node that leads, and with
            ``--workers`` it opens a connection to each worker that has one of its topics. TOYMQ_URL is not read here: pass
            ``os.environ["TOYMQ_URL"]``.
        token: for all URLs, in place of those in them; it needs no quoting here.
        name: name of this client, shown by the broker.
        ssl: for ``toymqs://``; default: the system's CAs.
        timeout_s: time limit of every request, outages included.
        connect_timeout_s: time limit of one attempt to connect.
        wait_s: how long to retry the first connection while no broker answers; 0: try each URL once. Default: 0, but 10 s if
            cluster nodes answer and none of them leads.
        backoff_min_s: bound of the first random wait before another attempt; doubles up to ``backoff_max_s``.
        idempotent: publishes without a key are numbered, so that a retry is stored once. False: such a publish is not retried,
            and raises ConnectionLost when its outcome is unknown.
        on_event: called with Connected and Disconnected. It must not block.
        inject_headers: called with a dict of headers for each publish, to add some; for trace context,
            ``opentelemetry.propagate.inject``.
        tracing: a ``toymq.tracing.Tracing``, which makes spans around publishes and ``message.process()`` and passes their
            context on.
        describe_errors: False: NACK carries only the type of a handler's exception, not its text and traceback.
        random: source of the random waits, for tests.

    Raises: ConfigError, BadArgument; when it connects, see ``Client.open``.
    """
    return Client(
        Options(
            parse_urls(urls, token), name, ssl, *times(timeout_s, connect_timeout_s, wait_s, backoff_min_s, backoff_max_s),
            idempotent, on_event, inject_headers, tracing, random or Random(), describe_errors,
        )
    )  # fmt: skip
