"""A real etcd of one or three members on free ports, for a test: ``with running_etcd(directory) as etcd: …etcd.urls…``.

Mark what uses it with ``require("etcd")``. etcd comes from PATH, else from Debian's package, which is unpacked into .cache and
not installed. Members are killed by their process ids at the end.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.support.certificates import client_context
from tests.support.machines import Machine
from tests.support.ports import reserved
from toymq_py.clock import SystemClock

CACHE = Path(__file__).parents[2] / ".cache" / "etcd"
BINARIES = "usr/bin"
FETCH_S = 120.0
START_S = 20.0
"""Three members on a busy machine elect a leader within two seconds."""
LOCAL = "127.0.0.1"
CLIENT_PORT, PEER_PORT = 2379, 2380
"""On a machine of its own."""
TIMERS = ("--heartbeat-interval", "50", "--election-timeout", "500")


def find_etcd(cache: Path = CACHE) -> str | None:
    """Put etcd on PATH. Returns: None, or what to do when there is none."""
    binaries = cache / BINARIES
    if shutil.which("etcd") is None:
        if not (binaries / "etcd").exists():
            _unpack(cache)
        os.environ["PATH"] = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    return None if shutil.which("etcd") else "there is no etcd: sudo apt-get install etcd-server"


def _unpack(cache: Path) -> None:
    """Unpack Debian's package; a failure leaves no files. Several processes may do this at once: the first result is kept."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return
    cache.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache.parent) as directory, contextlib.suppress(OSError, subprocess.SubprocessError):
        fetch = ["apt-get", "download", "-q", "etcd-server"]
        subprocess.run(fetch, cwd=directory, check=True, capture_output=True, timeout=FETCH_S)
        (package,) = Path(directory).glob("etcd-server_*.deb")
        subprocess.run(["dpkg", "-x", package.name, "whole"], cwd=directory, check=True, capture_output=True, timeout=FETCH_S)
        (Path(directory) / "whole").rename(cache)


class EtcdMember:
    """One process of etcd. Its log is beside its directory."""

    def __init__(
        self, directory: Path, name: str, client_port: int, peer_port: int, cluster: str, tls: Sequence[str],
        host: str = LOCAL, within: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``tls``: etcd's options for https; empty for http. ``within``: words before the command that run it on a machine of
        its own."""
        self.url = f"http{'s' if tls else ''}://{host}:{client_port}"
        self._context = client_context(certificate=True) if tls else None
        self.data_dir = directory / name
        self._log = directory / f"{name}.log"
        peer = f"http://{host}:{peer_port}"
        self._command = [
            *within, "etcd", "--name", name, "--data-dir", str(self.data_dir), *TIMERS,
            "--listen-client-urls", self.url, "--advertise-client-urls", self.url,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster, "--initial-cluster-state", "new", "--logger", "zap", "--log-level", "warn", *tls,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal: SIGSTOP hangs the member, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill the member, as a power cut would. No error when it has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def wait_until_it_answers(self) -> None:
        """Wait until the member answers. Raises: AssertionError with its log, when it does not."""
        request = urllib.request.Request(f"{self.url}/v3/kv/range", json.dumps({"key": "AA=="}).encode())
        ends_at = SystemClock().monotonic() + START_S
        while True:
            try:
                urllib.request.urlopen(request, timeout=2, context=self._context).close()
            except OSError as error:
                running = self._process is not None and self._process.poll() is None
                if not running or SystemClock().monotonic() > ends_at:
                    raise AssertionError(f"etcd at {self.url}: {error}\n{self._log.read_text()[-4000:]}") from error
                time.sleep(0.05)
            else:
                return


class EtcdCluster:
    """The members of an etcd, and the URLs for a client."""

    def __init__(self, members: list[EtcdMember]) -> None:
        self.members = members
        self.urls = [member.url for member in members]


@contextlib.contextmanager
def running_etcd(directory: Path, members: int = 1, tls: Sequence[str] = ()) -> Iterator[EtcdCluster]:
    """Start an etcd, and wait until all its members answer. ``tls``: options of ``etcd`` for https, instead of http."""
    names = [f"e{number}" for number in range(1, members + 1)]
    with reserved(2 * members) as port:  # of clients, and from peers on of the others
        peers = port + members
        cluster = ",".join(f"{name}=http://{LOCAL}:{peers + at}" for at, name in enumerate(names))
        with _running([
            EtcdMember(directory, name, port + at, peers + at, cluster, tls) for at, name in enumerate(names)
        ]) as etcd:  # fmt: skip
            yield etcd


@contextlib.contextmanager
def etcd_on_machines(directory: Path, machines: Iterable[Machine]) -> Iterator[EtcdCluster]:
    """Start a member of etcd on each machine, at the machine's address for the agreement. This thread enters the clients'
    network."""
    named = {f"e{machine.number}": machine for machine in machines}
    cluster = ",".join(f"{name}=http://{machine.agreement}:{PEER_PORT}" for name, machine in named.items())
    with _running([
        EtcdMember(directory, name, CLIENT_PORT, PEER_PORT, cluster, (), machine.agreement, machine.within)
        for name, machine in named.items()
    ]) as etcd:  # fmt: skip
        yield etcd


@contextlib.contextmanager
def _running(members: list[EtcdMember]) -> Iterator[EtcdCluster]:
    try:
        for member in members:
            member.start()
        for member in members:
            member.wait_until_it_answers()
        yield EtcdCluster(members)
    finally:
        for member in members:
            member.kill()
