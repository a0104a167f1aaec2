"""docs/more-cores.md and docs/more-machines.md tell the truth beyond one machine: their commands run in network namespaces."""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import toymq
from tests.support.broker_process import ROOT, TIMEOUT_S, Wire, environment
from tests.support.certificates import MACHINES_CERT, MACHINES_KEY
from tests.support.cluster_rig import MONOTONIC, WAIT_S
from tests.support.etcd import etcd_on_machines
from tests.support.machines import NETWORKS, Machine, Machines
from tests.support.requirements import require
from tests.support.tokens import EVERYTHING, token

pytestmark = require("netns", "proc")

PORT, HTTP_PORT = 6789, 8080
PRELUDE = f'export PATH="{Path(sys.executable).parent}:$PATH"'


def blocks(page: str, kind: str) -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.MULTILINE | re.DOTALL)
    return [text for of, text in found if of == kind]


def shell(script: str, folder: Path) -> str:
    """Run a script. Returns: its output. Raises: AssertionError with its output when it fails."""
    done = subprocess.run(
        ["sh", "-ec", f"{PRELUDE}\n{script}"], cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    return done.stdout


@contextlib.contextmanager
def serving(command: str, machine: Machine, folder: Path, prelude: str = "") -> Iterator["subprocess.Popen[str]"]:
    """Run a command of a page on a machine until the block ends, and stop it in good order."""
    arguments = [*machine.within, "sh", "-ec", f"{PRELUDE}\n{prelude}\nexec {command.strip()}"]
    with subprocess.Popen(arguments, cwd=folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.terminate()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


def there(block: str, folder: Path) -> str:
    """Return a shell block of a page with the addresses of the test's machines and the paths of this test."""
    block = block.replace("http://10.0.0.", f"http://{NETWORKS['agreement']}.").replace("10.0.0.", f"{NETWORKS['data']}.")
    return block.replace("/etc/toymq/", f"{folder}/etc/").replace("/var/lib/", f"{folder}/")


def certificates(folder: Path) -> None:
    """Write the certificates and tokens where the page has them."""
    folder.mkdir()
    for name in ("a", "b"):
        shutil.copy(MACHINES_CERT, folder / f"{name}.pem")
        shutil.copy(MACHINES_KEY, folder / f"{name}-key.pem")
    shutil.copy(MACHINES_CERT, folder / "nodes-ca.pem")
    (folder / "auth.toml").write_text(EVERYTHING)
    (folder / "auth.toml").chmod(0o600)


def of_node(serve: str, group: str, name: str, machine: Machine, port: int) -> str:
    """Return the page's command for a1, changed for another node: "each node has a data directory and ports of its own"."""
    serve = serve.replace("--group a ", f"--group {group} ").replace("--name a1 ", f"--name {name} ")
    serve = serve.replace("/toymq-a ", f"/toymq-{name} ").replace("/a.pem", f"/{group}.pem").replace("/a-key", f"/{group}-key")
    serve = serve.replace(f"{NETWORKS['data']}.1:", f"{machine.data}:")
    return serve.replace(f":{PORT}", f":{port}").replace(":6791", f":{port + 2}")


def ready(process: "subprocess.Popen[str]", count: int) -> None:
    assert process.stdout is not None
    for _ in range(count):
        assert "ready" in (line := process.stdout.readline()), line


def test_workers_serve_another_machine_at_the_address_of_the_command_and_the_ports_behind_it(tmp_path: Path) -> None:
    serve, change = blocks("more-cores.md", "sh")
    (program,) = blocks("more-cores.md", "python")
    (transcript,) = [text for text in blocks("more-cores.md", "") if text.startswith("> ")]
    with Machines(1) as machines, machines.entered():
        here, host = machines[0], machines[0].data
        serve = f"{serve.strip()} --insecure-public".replace("127.0.0.1", host)
        with serving(serve, here, tmp_path) as process:
            ready(process, 2)
            shell(f"cat > guide.py <<'END'\n{program.replace('127.0.0.1', host)}END\npython guide.py", tmp_path)
            for before, port in enumerate((PORT, PORT + 1, PORT + 2)):
                with Wire(port, host=host) as wire:
                    wire.follow(transcript.replace("< OK 1", f"< OK {before + 1}"))
            for port in (HTTP_PORT, HTTP_PORT + 1):
                with urllib.request.urlopen(f"http://{host}:{port}/v1/topics", timeout=WAIT_S) as answer:
                    assert {each["topic"] for each in json.load(answer)["topics"]} == {"orders", "events"}
        assert "2 workers" in shell(change.splitlines()[0], tmp_path)
        shell(change.splitlines()[1], tmp_path)
        with serving(serve.replace("--workers 2", "--workers 4"), here, tmp_path) as process:
            ready(process, 4)
            shell("python guide.py", tmp_path)
            for port in range(PORT, PORT + 5):
                with Wire(port, host=host) as wire:
                    assert wire.ask(b"DESCRIBE orders\n").startswith(b"JSON")
                    assert json.loads(wire.line())["messages"] > 0


@pytest.mark.torture
@require("etcd")
def test_groups_over_machines_as_the_page_makes_them(tmp_path: Path) -> None:
    """Two groups, with copies on different machines: clients, a move, a machine that is cut off, a group that is removed."""
    init, serve, move, remove = (there(block, tmp_path) for block in blocks("more-machines.md", "sh"))
    exported = init.splitlines()[0]
    certificates(tmp_path / "etc")
    with Machines(3) as machines, machines.entered(), etcd_on_machines(tmp_path, machines), contextlib.ExitStack() as nodes:
        shell(init, tmp_path)

        def start(group: str, name: str, at: int, port: int) -> "subprocess.Popen[str]":
            return nodes.enter_context(
                serving(of_node(serve, group, name, machines[at], port), machines[at], tmp_path, exported)
            )

        of_a = [start("a", "a1", 0, PORT), start("a", "a2", 1, PORT)]
        of_b = [start("b", "b1", 1, PORT + 1), start("b", "b2", 2, PORT)]
        asyncio.run(_used(Cluster(machines, tmp_path, exported, move, remove), of_a, of_b))


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster, and what an operator does to it, as the page says."""

    machines: Machines
    folder: Path
    exported: str
    move: str
    remove: str

    async def ctl(self, script: str) -> str:
        return await asyncio.to_thread(shell, f"{self.exported}\n{script}", self.folder)

    async def led(self, copies: int, *, other_than: str = "") -> dict[str, str]:
        """Wait until each group has a leader other than ``other_than``, and so many copies in sync. Returns: the leaders."""
        until = MONOTONIC() + WAIT_S
        while True:
            found = [json.loads(line) for line in (await self.ctl("toymqctl cluster show --json")).splitlines()]
            leaders = {each["group"]: each["leader"] for each in found}
            if min(len(each["in_sync"]) for each in found) >= copies and not {None, other_than} & set(leaders.values()):
                return leaders
            assert MONOTONIC() < until, found
            await asyncio.sleep(0.2)

    def cut_off(self, machine: Machine) -> None:
        for other in (self.machines.hub, *self.machines):
            if other is not machine:
                self.machines.part(machine, other)


async def _used(cluster: Cluster, of_a: list["subprocess.Popen[str]"], of_b: list["subprocess.Popen[str]"]) -> None:
    machines = cluster.machines
    leaders = await cluster.led(2)
    assert leaders.keys() == {"a", "b"}
    address = f"toymq://{token('all')}@{machines[0].data}:{PORT},{machines[1].data}:{PORT}"  # any nodes: none of b
    async with await toymq.connect(address, timeout_s=WAIT_S, wait_s=WAIT_S) as client:
        await client.create("orders", {"group": "a"})
        await client.create("mail", {"group": "b"})
        for topic in ("orders", "mail"):
            await client.pub(topic, b"first")
        assert await cluster.ctl(cluster.move)
        await client.pub("orders", b"moved")
        assert [each["topic"] for each in await client.topics(">")] == ["mail", "orders"]

        lost = {"b1": machines[1], "b2": machines[2]}[leaders["b"]]
        cluster.cut_off(lost)
        for topic in ("orders", "mail"):
            await client.pub(topic, b"behind the cut")
        assert (await cluster.led(1, other_than=leaders["b"]))["b"] != leaders["b"]
        machines.heal()
        await cluster.led(2)

        for topic in ("orders", "mail"):
            await cluster.ctl(f"toymqctl cluster move {topic} a")
        for node in of_b:
            node.terminate()
            await asyncio.to_thread(node.wait, WAIT_S)
        assert await cluster.ctl(cluster.remove)
        for topic, bodies in (("orders", [b"first", b"moved", b"behind the cut"]), ("mail", [b"first", b"behind the cut"])):
            async with client.sub(topic, "judge", start="earliest") as messages:
                assert [(await messages.next(timeout=WAIT_S)).payload for _ in bodies] == bodies
        assert [each["topic"] for each in await client.topics(">")] == ["mail", "orders"], "no list waits for b"
    assert all(node.poll() is None for node in of_a)
