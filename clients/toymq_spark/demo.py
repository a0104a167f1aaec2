"""``toymq-pipeline demo``: archive and replay real data through real kills, and count the records afterwards."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from toymq import sync
from toymq.broker_process import TOYMQ_WITH_PARENT, BrokerProcess
from toymq_py.errors import LocalError
from toymq_spark.manifest import Archive

TOPIC = "stdlib"
COPY = "stdlib-again"
BATCH = 20_000
LINES_MAX = 100_000
WAIT_S = 300


class DemoFailed(LocalError):
    """A process of the demo did not start, or did not end."""


def run(master: str, say: Callable[[str], object]) -> bool:
    """Run the demo; ``say`` gets its lines. Returns: whether every record was stored exactly once. Raises: DemoFailed,
    StartFailed, OSError, ToymqError."""
    place = Path(tempfile.mkdtemp(prefix="toymq-spark-demo-"))
    try:
        return _run(place, master, say)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _run(place: Path, master: str, say: Callable[[str], object]) -> bool:
    lines = _lines()
    digest = hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]
    broker = BrokerProcess(place / "data", "--min-free-bytes", "0", "--log-level", "error", program=TOYMQ_WITH_PARENT)
    url = broker.url
    archive = place / "archive"
    words = ["archive", "--url", url, "--subscribe", TOPIC, "--to", str(archive), "--once"]
    words += ["--option", f"maxOffsetsPerTrigger={BATCH}"]
    with broker:
        began = time.monotonic()  # noqa: TID251 (shown to a person)
        ledger = place / f"{TOPIC}.jsonl"
        _publish(url, lines, ledger)
        published_s = time.monotonic() - began  # noqa: TID251
        say(f"published   {len(lines):,} lines of Python's standard library in {published_s:.1f} s")
        job = _pipeline(master, words)
        _until(job, lambda: len(Archive(archive).manifests()) >= 2)
        os.killpg(job.pid, signal.SIGKILL)
        job.communicate()
        broker.kill()
        before = sum(file.rows for file in Archive(archive).files())
        say(f"killed      broker, driver and JVM with SIGKILL, with {before:,} lines archived")
    with broker:
        _to_the_end(_pipeline(master, words))
        table = Archive(archive).dataset().to_table(columns=["offset", "value"]).sort_by("offset")
        archived = hashlib.sha256(b"\n".join(table.column("value").to_pylist())).hexdigest()[:16]
        say(f"resumed     {table.num_rows:,} lines archived in {len(Archive(archive).files())} files, seen by pyarrow")
        replay = ["replay", "--url", url, "--archive", str(archive), "--to", COPY, "--state", str(place / "replay")]
        _to_the_end(_pipeline(master, replay))
        copied = _copied(url)
        again = hashlib.sha256(b"\n".join(sorted(copied))).hexdigest() == hashlib.sha256(b"\n".join(sorted(lines))).hexdigest()
        say(f"replayed    {len(copied):,} lines into {COPY}")
        verify = _pipeline(master, ["verify", "--url", url, "--json", str(ledger)])
        said = json.loads(verify.communicate(timeout=WAIT_S)[0].splitlines()[-1])
    say("")
    say(f"  {'':<26}{'lines':>10}   what it holds")
    say(f"  {'published':<26}{len(lines):>10,}   {digest}")
    say(f"  {'archive, after the kill':<26}{table.num_rows:>10,}   {archived}")
    say(f"  {'second topic':<26}{len(copied):>10,}   {'the same lines' if again else 'OTHER LINES'}")
    say(f"  {'verify: ' + TOPIC:<26}{said['findings']:>10,}   findings (lost, unexpected, changed, duplicated)")
    fine = table.num_rows == len(lines) and archived == digest and again and not said["findings"]
    say("every line is there once, everywhere" if fine else "SOMETHING IS WRONG")
    return fine


def _lines() -> list[bytes]:
    """Return the lines of a real data set that every machine has."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"), key=lambda file: -file.stat().st_size)
    return [line for file in files for line in file.read_bytes().splitlines()][:LINES_MAX]


def _publish(url: str, lines: list[bytes], ledger: Path) -> None:
    with sync.connect(url) as client, ledger.open("w") as out:
        receipts = client.pub_many(TOPIC, ((f"line-{number}", line) for number, line in enumerate(lines)))
        for number, receipt in enumerate(receipts):
            digest = hashlib.blake2b(lines[number], digest_size=8).hexdigest()
            said = {"topic": TOPIC, "key": f"line-{number}", "digest": digest, "id": receipt.msg_id}
            out.write(json.dumps({"op": "pub", "result": "ok", **said}) + "\n")


def _copied(url: str) -> list[bytes]:
    from toymq_py.storage.reader import walk_columns
    from toymq_spark.options import BrokerAddress
    from toymq_spark.record_sources import BrokerLogs

    logs = BrokerLogs(BrokerAddress(url))
    try:
        first_id, next_id, _ = logs.bounds(COPY)
        return [payload for run in logs.read(COPY, first_id, next_id, walk_columns) for payload in run.seen.payloads]
    finally:
        logs.close()


def _pipeline(master: str, words: list[str]) -> subprocess.Popen[str]:
    """Start ``toymq-pipeline`` in a process session of its own, so that its JVM can be killed together with it."""
    command = [sys.executable, "-c", "from toymq_spark.cli import main; main()", "--master", master, *words]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def _until(job: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    for _ in range(WAIT_S * 10):
        if reached():
            return
        try:
            job.wait(timeout=0.1)
        except subprocess.TimeoutExpired:
            continue
        raise DemoFailed(f"a job ended too early: {job.communicate()[1][-500:]}")
    raise DemoFailed("a job did not get there")


def _to_the_end(job: subprocess.Popen[str]) -> None:
    _, said = job.communicate(timeout=WAIT_S)
    if job.returncode:
        raise DemoFailed(f"a job failed: {said[-500:]}")
