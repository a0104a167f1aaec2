"""docs/operations.md: the commands of each chapter run in a shell as they are written, against a broker with that trouble.

The machine is replaced with paths below the test's directory and a ``systemctl`` that starts and stops a real broker. There is
no user ``toymq``: the test's own user stands for it. ``test_directory_owner.py`` has real users."""

import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.broker_process import ROOT, environment
from tests.support.forked_broker import TOYMQ, TOYMQCTL
from tests.support.forked_scripts import ForkedScripts
from toymq import sync
from toymq.sockets import reserved_port
from toymq_py.storage.segment import segment_name

PAGE = (ROOT / "docs" / "operations.md").read_text()
TIMEOUT_S = 120

SYSTEMCTL = """\
import os, select, signal, sys
from toymq.broker_process import BrokerProcess
verb, unit = sys.argv[1:]
assert unit == "toymq"
pid_file = os.environ["RUNBOOK_PID"]
if verb in ("stop", "restart"):
    pid = int(open(pid_file).read())
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGTERM)
    assert select.select([gone], [], [], 60)[0], "it does not stop"
    os.unlink(pid_file)
if verb in ("start", "restart"):
    broker = BrokerProcess(os.environ["TOYMQ_DATA_DIR"], "--listen", os.environ["TOYMQ_LISTEN"])
    broker.start()
    with open(pid_file, "w") as file:
        file.write(str(broker.pid))
"""

RUNUSER = """\
#!/bin/sh
test "$1 $2 $3" = "-u toymq --" && shift 3 && exec "$@"
"""
INSTALL = """\
#!/bin/sh
test "$1 $2 $3 $4 $5 $6 $7" = "-d -m 0700 -o toymq -g toymq" && exec mkdir -p -m 0700 "$8"
"""


def chapter(title: str) -> list[str]:
    """Return the shell blocks of a chapter."""
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, f"there is no chapter {title}"
    return re.findall(r"^```sh\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL)


class Machine:
    """A broker as systemd would run it, and a shell beside it."""

    def __init__(self, root: Path, scripts: ForkedScripts) -> None:
        self.root = root
        self.data = root / "var/lib/toymq"
        self.data.parent.mkdir(parents=True)
        (root / "srv/backup").mkdir(parents=True)
        (root / "srv/new").mkdir()
        (root / "bin").mkdir()
        (root / "opt/toymq/bin").mkdir(parents=True)
        scripts.write(root / "bin/systemctl", SYSTEMCTL)
        for name, program in (("runuser", RUNUSER), ("install", INSTALL)):
            (root / "bin" / name).write_text(program)
            (root / "bin" / name).chmod(0o755)
        scripts.write(root / "bin/toymq", TOYMQ)
        scripts.write(root / "bin/toymqctl", TOYMQCTL)
        scripts.write(root / "opt/toymq/bin/pip", "import sys; print('pip', *sys.argv[1:])")
        port = reserved_port(self)
        self.environment = environment() | {
            "PATH": f"{root}/bin:{os.environ['PATH']}",
            "RUNBOOK_PID": str(root / "pid"),
            "TOYMQ_CONFIG": "/dev/null",
            "TOYMQ_DATA_DIR": str(self.data),
            "TOYMQ_LISTEN": f"127.0.0.1:{port}",
            "TOYMQ_MIN_FREE_BYTES": "0",
            "TOYMQ_URL": f"toymq://127.0.0.1:{port}",
        }

    def sh(self, block: str, *, fails: bool = False) -> str:
        """Run lines as they are written; every one must succeed."""
        for path in ("/var/lib/toymq", "/srv/", "/opt/"):
            block = block.replace(path, f"{self.root}{path}")
        done = subprocess.run(
            ["sh", "-e", "-c", block], env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert (done.returncode != 0) == fails, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def spoil(self, topic: str) -> None:
        """Flip a bit of the first record."""
        file = self.data / "topics" / topic / segment_name(0)
        content = bytearray(file.read_bytes())
        content[8] ^= 1
        file.write_bytes(content)

    def messages(self, topic: str) -> int:
        return int(self.sh(f"toymqctl tail {topic} | wc -l"))


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with ForkedScripts(tmp_path) as scripts:
        machine = Machine(tmp_path, scripts)
        machine.sh("systemctl start toymq\nseq 9 | toymqctl pub orders")
        yield machine
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_backup_and_restore(machine: Machine) -> None:
    (backup,) = chapter("Backup")
    assert "ids 0 to 8" in machine.sh(backup)
    assert "ids 0 to 8" in machine.sh(backup), "a second time, too"
    machine.sh("toymqctl pub orders later")
    (restore,) = chapter("Restore")
    machine.sh(restore)
    assert machine.messages("orders") == 9
    assert "later" in machine.sh("toymq dump /var/lib/toymq.broken orders")


def test_disk_full(machine: Machine) -> None:
    machine.sh("toymqctl create scratch")
    for consumer in ("abandoned", "slow"):
        machine.sh(f"toymqctl seek orders {consumer} earliest --create")
    machine.environment["TOYMQ_MIN_FREE_BYTES"] = str(1 << 60)
    machine.sh("systemctl restart toymq")
    assert "publishing is refused" in machine.sh("toymqctl doctor", fails=True)
    look, mend = chapter("Disk full")
    assert "abandoned" in machine.sh(look)
    machine.sh(mend)
    assert machine.sh("toymqctl consumers").count("\n") == 2, "a heading, and the consumer that is left"
    assert "scratch" not in machine.sh("toymqctl topics")


def test_degraded_topic(machine: Machine) -> None:
    machine.sh("systemctl stop toymq")
    machine.spoil("orders")
    machine.sh("systemctl start toymq")
    machine.sh("toymqctl doctor", fails=True)
    look, mend = chapter("Degraded topic")
    assert "record 0 is lost" in machine.sh(look)
    assert "orders: repaired, 1 record lost" in machine.sh(mend)
    assert machine.messages("orders") == 8
    assert list((machine.data / "quarantine").rglob("*.log"))


def poisoned(machine: Machine) -> None:
    (mend,) = chapter("Poisoned log")
    machine.sh(mend)
    assert machine.messages("orders") == 9


def slow_consumer(machine: Machine) -> None:
    machine.sh("toymqctl seek orders slow earliest --create")
    look, more_time, skip = chapter("Slow consumer")
    assert "slow" in machine.sh(look)
    assert "5m" in machine.sh(more_time)
    machine.sh(skip)
    assert '"backlog": 0' in machine.sh("toymqctl consumers orders --json")


def failing_consumer(machine: Machine) -> None:
    with sync.connect(machine.environment["TOYMQ_URL"]) as mq:
        for delay_s in (0, 0, 0, 0, 300):
            for message in mq.pull("orders", "billing", max=9, wait=10):
                message.nack(delay_s)
    (look,) = chapter("Failing consumer")
    seen = machine.sh(look)
    assert "warn  retries: billing of orders retries 9 messages after failed attempts, one of them has had 5" in seen


def dead_letters(machine: Machine) -> None:
    with sync.connect(machine.environment["TOYMQ_URL"]) as mq:
        for message in mq.pull("orders", "billing", max=3, wait=10):
            message.dead_letter(reason="broken")
        assert mq.pull("orders.dlq", "watch", wait=10), "the first letter is stored"
        look, back, gone = chapter("Growing dead letters")
        seen = machine.sh(look)
        assert [word for word in ("billing", "broken", "toymq-origin-id") if word not in seen] == []
        machine.sh(back)
        again = mq.pull("orders", "billing", max=100, wait=10)
        assert {(message.headers or {}).get("toymq-redrives") for message in again if message.id >= 9} == {"1"}
    machine.sh(gone)
    assert machine.messages("orders.dlq") == 0


def moving(machine: Machine) -> None:
    (move,) = chapter("Moving the data directory")
    machine.sh(move)
    assert machine.messages("orders") == 9
    assert (machine.root / "var/lib/toymq.old").is_dir()


def upgrade(machine: Machine) -> None:
    before, install = chapter("Upgrade")
    machine.sh(before)
    assert "pip install --force-reinstall --no-deps toymq-*.whl" in machine.sh(install)


@pytest.mark.parametrize("tried", [poisoned, failing_consumer, slow_consumer, dead_letters, moving, upgrade])
def test_chapter(machine: Machine, tried: Callable[[Machine], None]) -> None:
    tried(machine)


def test_what_touches_the_data_directory_runs_as_its_owner() -> None:
    """Found: the page had `systemctl stop toymq` and `toymq repair` in one shell of root, so the broker could not read the
    repaired topics."""
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    touching = [line for line in "".join(blocks).splitlines() if "/var/lib/toymq" in line]
    assert len(touching) >= 9
    allowed = ("runuser -u toymq -- toymq ", "install -d -m 0700 -o toymq -g toymq ", "mv ")
    assert [line for line in touching if not line.startswith(allowed)] == []


def test_the_first_look(machine: Machine) -> None:
    block = re.search(r"Look here first, always:\n\n```sh\n(.*?)```", PAGE, re.DOTALL)
    assert block is not None
    assert "durability" in machine.sh(block[1])


def test_every_link_leads_somewhere() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", PAGE)
    assert len(links) > 5
    for target, anchor in links:
        assert not target or (ROOT / "docs" / target).exists(), target
        assert target or anchor in anchors, anchor
