"""Machines that are network namespaces: each has its own addresses and routes, so that packets between two of them can be
dropped.

    with Machines(3) as machines, machines.entered():       # this thread is in the namespace of the clients
        subprocess.Popen([*machines[0].within, "etcd", …])   # listens on machines[0].agreement and .data
        machines.cut(machines[0], machines[1], network="data")   # one way: what the first sends to the second
        machines.heal()

Each machine has two addresses, one for data (clients, replicas) and one for the agreement (etcd), so that a cut may take one of
the two. A cut sends an address's packets to a hardware address that no device has: they vanish, and open connections stay open.
(A blackhole route also drops packets, but refuses new connections at once, unlike a broken cable.) ``@require("netns")``: needs
root.
"""

import contextlib
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

CLONE_NEWNET = 0x40000000
NETWORKS = {"data": "10.77.0", "agreement": "10.88.0"}
NO_DEVICE = "02:00:00:00:00:01"
HUB = 254
"""Last number of the addresses of the clients' namespace, to whose bridge all machines are connected."""

Network = Literal["data", "agreement"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One network namespace. ``number`` is the last number of its addresses."""

    namespace: str
    number: int
    device: str = "eth0"

    @property
    def data(self) -> str:
        return f"{NETWORKS['data']}.{self.number}"

    @property
    def agreement(self) -> str:
        return f"{NETWORKS['agreement']}.{self.number}"

    @property
    def within(self) -> tuple[str, ...]:
        """Words before a command that run it on this machine. ``ip`` replaces itself by the command, so the process is the
        command's own."""
        return ("ip", "netns", "exec", self.namespace)

    @contextlib.contextmanager
    def running(self, program: str) -> "Iterator[subprocess.Popen[str]]":
        """Run a Python program on this machine until the end of the block. Its output can be read from ``stdout``."""
        command = [*self.within, sys.executable, "-c", program]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


class Machines:
    """A number of machines, and the clients' namespace. A context manager, which removes them all at its end."""

    def __init__(self, count: int) -> None:
        prefix = f"toymq-{os.getpid()}"
        self.hub = Machine(f"{prefix}-hub", HUB, "bridge")
        self._machines = [Machine(f"{prefix}-m{number}", number) for number in range(1, count + 1)]

    def __getitem__(self, at: int) -> Machine:
        return self._machines[at]

    def __iter__(self) -> Iterator[Machine]:
        return iter(self._machines)

    def __enter__(self) -> "Machines":
        """Make the namespaces. Raises: subprocess.CalledProcessError without the right to do that."""
        try:
            for machine in (self.hub, *self._machines):
                _ip("netns", "add", machine.namespace)
                _ip("-n", machine.namespace, "link", "set", "lo", "up")
            _ip("-n", self.hub.namespace, "link", "add", self.hub.device, "type", "bridge")
            for machine in self._machines:
                port = f"m{machine.number}"
                _ip("-n", self.hub.namespace, "link", "add", port, "type", "veth", "peer", "name", machine.device, "netns",
                    machine.namespace)  # fmt: skip
                _ip("-n", self.hub.namespace, "link", "set", port, "master", self.hub.device, "up")
                _addressed(machine)
            _addressed(self.hub)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for machine in (self.hub, *self._machines):
            subprocess.run(["ip", "netns", "del", machine.namespace], check=False, capture_output=True)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Put this thread, and threads and processes that it starts, into the clients' namespace while the block runs."""
        with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{self.hub.namespace}") as hub:  # noqa: PTH123 (as one)
            _enter(hub.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    # -- cuts

    def cut(self, sender: Machine, receiver: Machine, *, networks: tuple[Network, ...] = ("data", "agreement")) -> None:
        """Drop what ``sender`` sends to ``receiver`` from now on; the other direction is unchanged. Idempotent."""
        for network in networks:
            _ip("-n", sender.namespace, "neighbour", "replace", f"{NETWORKS[network]}.{receiver.number}",
                "lladdr", NO_DEVICE, "dev", sender.device, "nud", "permanent")  # fmt: skip

    def part(self, one: Machine, other: Machine, *, networks: tuple[Network, ...] = ("data", "agreement")) -> None:
        """Cut both ways."""
        self.cut(one, other, networks=networks)
        self.cut(other, one, networks=networks)

    def heal(self) -> None:
        """End all cuts."""
        for machine in (self.hub, *self._machines):
            _ip("-n", machine.namespace, "neighbour", "flush", "dev", machine.device, "nud", "permanent")


def missing() -> str | None:
    """Return why no machine can be made here; None when one can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Machines(1) as machines, machines.entered():
            return None
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return str(said).strip().splitlines()[-1]


def _addressed(machine: Machine) -> None:
    for network in NETWORKS.values():
        _ip("-n", machine.namespace, "address", "add", f"{network}.{machine.number}/24", "dev", machine.device)
    _ip("-n", machine.namespace, "link", "set", machine.device, "up")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def _enter(descriptor: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12
    if libc.setns(descriptor, CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
