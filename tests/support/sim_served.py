"""A served broker in virtual time, on a simulated network and disk: deadlines cost no time, and a thousand connections
little."""

import asyncio
import random
import ssl
from types import TracebackType

from tests.simulation.world import MortalDisk, VirtualClock, VirtualThreads
from tests.support.sim_event_loop import SimEventLoop, SimListener, SimTransport
from toymq_py.auth.tokens import Authority
from toymq_py.broker import Broker
from toymq_py.config.options import BrokerOptions
from toymq_py.net.certificates import Certificates
from toymq_py.server import Server


class SimServed:
    """A served broker. A context manager. Time passes only in ``advance``."""

    def __init__(
        self,
        *,
        authority: Authority | None = None,
        certificates: Certificates | None = None,
        seed: int = 1,
        **options: int,
    ) -> None:
        rng = random.Random(seed)
        self.loop = SimEventLoop(random.Random(rng.random()))
        self.loop.steps_left = 2_000_000
        self._clock = VirtualClock(self.loop)
        self._options = BrokerOptions(data_dir="/data/d", min_free_bytes=0, shutdown_timeout_ms=100, **options)
        self._authority, self._certificates = authority, certificates
        self._start(MortalDisk(random.Random(rng.random()), tracing=False))

    def _start(self, disk: MortalDisk) -> None:
        self._disk = disk
        self.threads = VirtualThreads(self.loop, disk, lambda: None)
        self.broker = Broker(self._options, fs=disk, scheduler=self.threads, clock=self._clock)
        self.broker.open(1)
        self.server = Server(
            self.broker, self._clock, self.loop,
            authority=self._authority, certificates=self._certificates,
        )  # fmt: skip
        self.listener, self.tls_listener = SimListener(self.loop), SimListener(self.loop)
        self._running = self.loop.create_task(
            self.server.run([self.listener], [self.tls_listener])  # type: ignore[list-item]
        )

    def restart(self) -> None:
        """Stop the broker, and start another one on the same disk."""
        self.server.stop()
        self.loop.run_until_complete(self._running)
        self.broker.close()
        self.threads.alive = False
        disk = self._disk.kill()
        assert isinstance(disk, MortalDisk)
        self._start(disk)
        self.advance(0.001)

    def stop(self) -> float:
        """Stop the broker as SIGTERM does. Returns: how many seconds that took."""
        began = self.loop.now
        self.server.stop()
        self.loop.run_until_complete(self._running)
        return round(self.loop.now - began, 9)

    def __enter__(self) -> "SimServed":
        self.advance(0.001)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.server.stop()
        self.loop.run_until_complete(self._running)
        self.broker.close()
        self.loop.close()

    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def client(self, data: bytes = b"") -> "SimClient":
        """Connect a client and send ``data``."""
        client = SimClient()
        client.transport = self.listener.connect(client)
        client.send(data)
        return client

    def tls_client(self, context: ssl.SSLContext | None, data: bytes = b"") -> "SimClient":
        """Connect a client to the TLS port and send ``data``; with ``context`` None the client does not speak TLS."""
        client = SimClient() if context is None else SimTlsClient(context)
        client.transport = self.tls_listener.connect(client)
        client.send(data)
        return client


class SimClient(asyncio.Protocol):
    """A client's connection. ``received``: all bytes that came; ``at_end``: the stream has ended; ``lost``: the connection is
    gone."""

    def __init__(self) -> None:
        self.transport: SimTransport
        self.received = b""
        self.at_end = False
        self.lost = False

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        self.transport.close()

    def lines(self) -> list[bytes]:
        return self.received.split(b"\n")[:-1]

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        self.at_end = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True


class SimTlsClient(SimClient):
    """A client's TLS connection. ``received``: the decrypted bytes; ``failure``: why TLS failed; ``at_end``: the other end has
    closed TLS."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self.failure: ssl.SSLError | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="127.0.0.1")
        self.open = False
        self.arrived = 0
        """Bytes, as they came."""
        self._unsaid = b""

    def send(self, data: bytes) -> None:
        self._unsaid += data
        self._go_on()

    def data_received(self, data: bytes) -> None:
        self.arrived += len(data)
        self._incoming.write(data)
        self._go_on()

    def flush(self) -> None:
        self.transport.write(self._outgoing.read())

    def _go_on(self) -> None:
        try:
            if not self.open:
                self.tls.do_handshake()
                self.open = True
            while self._unsaid:
                self._unsaid = self._unsaid[self.tls.write(self._unsaid) :]
            self.flush()
            while piece := self.tls.read(1 << 16):
                self.received += piece
            self.at_end = True
        except ssl.SSLWantReadError:
            self.flush()
        except ssl.SSLError as error:
            self.failure = self.failure or error
            self.flush()
