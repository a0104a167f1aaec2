"""Tables and files are whole after kill -9 of driver, JVM and executors in the middle of batches. Minutes: make
test-spark-slow.

A test starts six drivers, each with a JVM. With both cores busy, at a load of 8 to 16, those of tables took 9 (Iceberg) and 14
minutes (Delta), so a limit of ten minutes a test would be too short."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from tests.spark.test_spark import records
from tests.support.broker_process import BrokerProcess, environment
from tests.support.requirements import require
from tests.support.tables import KINDS, ids
from toymq import sync
from toymq.sockets import reserved_port
from toymq_spark.jobs import archive
from toymq_spark.manifest import Archive
from toymq_spark.tables.opening import open_table
from toymq_spark.tables.table import Files

pytestmark = [require("java"), pytest.mark.spark_slow]

ROWS = 160_000
BATCH = 20_000
KILLS_AT = (13_000, 37_000, 66_000, 91_000, 128_000)
"""Rows that are there when the driver is killed: each time in the middle of a batch."""
LONG_S = 600
PROGRAM = """
import sys
from toymq_spark.session import build_session

url, topic, copy, checkpoint, batch, partitions, master = sys.argv[1:]
loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
settings = {"spark.executor.memory": "700m", "spark.cores.max": "2", **loopback} if master.startswith("spark:") else {}
spark = build_session("copy", master, settings)
rows = spark.readStream.format("toymq").options(
    url=url, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=batch, minPartitions="2"
).load()
if partitions != "0":
    rows = rows.repartition(int(partitions))
query = rows.writeStream.format("toymq").options(url=url, topic=copy).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        with sync.connect(url_of(running)) as client:
            list(client.pub_many("source", ((f"k{n}" if n % 2 else None, b"%d" % n) for n in range(ROWS))))
        yield running


def url_of(broker: BrokerProcess) -> str:
    return f"toymq://127.0.0.1:{broker.port}"


class Driver:
    """A program in a session of its own, so that its JVM and its workers can be killed with it."""

    def __init__(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *words], env=environment(), start_new_session=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ends(self) -> None:
        _, said = self._process.communicate(timeout=LONG_S)
        assert self._process.returncode == 0, said

    def kill_when(self, reached: Callable[[], bool]) -> None:
        for _ in range(LONG_S * 20):
            if reached():
                break
            try:
                self._process.wait(timeout=0.05)
            except subprocess.TimeoutExpired:
                continue
            raise AssertionError(f"it ended before it could be killed: {self._process.communicate()[1]}")
        self.kill()

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


def there(broker: BrokerProcess, topic: str) -> int:
    with sync.connect(url_of(broker)) as client:
        present = {found["topic"]: found["next_id"] for found in client.topics()}
    return int(present.get(topic, 0))


def killed_and_resumed(start: Callable[[], Driver], rows: Callable[[], int]) -> None:
    for limit in KILLS_AT:
        start().kill_when(lambda: rows() >= limit)  # noqa: B023 (called at once)
        assert rows() < ROWS, "it was killed too late to show anything"
    start().ends()


def check_copy(broker: BrokerProcess, copy: str) -> None:
    with sync.connect(url_of(broker)) as client:
        found = sorted(int(frame.payload) for frame in records(client, copy))
    assert len(found) == ROWS, f"{len(set(range(ROWS)) - set(found))} lost, {len(found) - len(set(found))} duplicated"
    assert found == list(range(ROWS))


def test_source_to_parquet(broker: BrokerProcess, spark: SparkSession, tmp_path: Path) -> None:
    to = tmp_path / "archive"

    def start() -> Driver:
        return Driver(
            "-c", "from toymq_spark.cli import main; main()", "--master", "local[2]", "archive", "--url", url_of(broker),
            "--subscribe", "source", "--to", str(to), "--once", "--option", f"maxOffsetsPerTrigger={BATCH}",
        )  # fmt: skip

    def written() -> int:
        """Return the number of rows under a manifest, plus one when files of the next batch are being written."""
        manifests = Archive(to).manifests()
        committed = sum(file.rows for manifest in manifests for file in manifest.files)
        begun = len(list((to / "data").glob("batch=*"))) > len(manifests)
        return committed + BATCH // 2 * begun

    killed_and_resumed(start, written)
    table = Archive(to).dataset().to_table(columns=["offset", "value"])
    assert sorted(table.column("offset").to_pylist()) == list(range(ROWS)), "seen by pyarrow"
    seen = archive.read(spark, to)
    assert seen.count() == seen.select("value").distinct().count() == ROWS, "seen by Spark"


@pytest.mark.parametrize("kind", KINDS)
def test_source_to_a_table(kind: str, broker: BrokerProcess, tmp_path: Path) -> None:
    to = tmp_path / "archive"
    before: set[Path] = set()

    def start() -> Driver:
        before.update(to.rglob("*.parquet"))
        return Driver(
            "-c", "from toymq_spark.cli import main; main()", "--master", "local[2]", "archive", "--url", url_of(broker),
            "--subscribe", "source", "--to", str(to), "--format", kind, "--once", "--option", f"maxOffsetsPerTrigger={BATCH}",
        )  # fmt: skip

    def written() -> int:
        """Return the number of committed rows, plus some when files of the next batch are being written."""
        table = open_table(str(to), kind)
        if table.state() is None:
            return 0
        files = Files(table.snapshot()).files()
        named = {Path(file.path).name for file in files}
        begun = any(file not in before and file.name not in named for file in to.rglob("*.parquet"))
        return sum(file.rows for file in files) + BATCH // 2 * begun

    killed_and_resumed(start, written)
    assert ids(kind, to) == list(range(ROWS))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_archive_that_is_told_to_end(number: int, broker: BrokerProcess, tmp_path: Path) -> None:
    """Ctrl-C reaches the JVM and its workers, too. Nothing is printed about it, and the next run goes on."""
    to = tmp_path / "archive"
    words = [
        sys.executable, "-c", "from toymq_spark.cli import main; main()", "--master", "local[2]", "archive", "--url",
        url_of(broker), "--subscribe", "source", "--to", str(to), "--option", f"maxOffsetsPerTrigger={BATCH}",
    ]  # fmt: skip
    with subprocess.Popen(
        [*words, "--every", "1s"], env=environment(), start_new_session=True, stderr=subprocess.PIPE, text=True
    ) as job:
        for _ in range(LONG_S * 20):
            if Archive(to).manifests() or job.poll() is not None:
                break
            time.sleep(0.05)
        os.killpg(job.pid, number)
        _, said = job.communicate(timeout=LONG_S)
    assert job.returncode == 128 + number
    assert [line for line in said.splitlines() if " rows archived, " not in line] == []
    subprocess.run([*words, "--once"], env=environment(), check=True, capture_output=True, timeout=LONG_S)
    assert sorted(Archive(to).dataset().to_table(columns=["offset"])["offset"].to_pylist()) == list(range(ROWS))


def test_topic_to_topic(broker: BrokerProcess, tmp_path: Path) -> None:
    words = (url_of(broker), "source", "copy", str(tmp_path / "checkpoint"), str(BATCH), "0", "local[2]")
    killed_and_resumed(lambda: Driver("-c", PROGRAM, *words), lambda: there(broker, "copy"))
    check_copy(broker, "copy")


@pytest.fixture
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Run a standalone Spark cluster on loopback, from the pip package: a master and two workers with a core each."""
    home = Path(pyspark.__file__).parent
    port = reserved_port(request)
    env = {
        **environment(), "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_WORKER_DIR": str(tmp_path / "work"), "SPARK_NO_DAEMONIZE": "1",
        "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
    }  # fmt: skip
    spark_class = str(home / "bin" / "spark-class")
    deploy = "org.apache.spark.deploy"
    commands = [[spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    worker = [f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
    commands += [[spark_class, *worker, f"spark://127.0.0.1:{port}"]] * 2
    with (tmp_path / "cluster.log").open("w") as log:
        running = [
            subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True) for command in commands
        ]
        try:
            yield f"spark://127.0.0.1:{port}"
        finally:
            for process in running:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def executors(under: Path) -> list[int]:
    """Return the executor processes of the cluster whose workers have this directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            is_one = entry.name.isdigit() and b"CoarseGrainedExecutorBackend" in (entry / "cmdline").read_bytes()
            if is_one and (entry / "cwd").readlink().is_relative_to(under):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@require("proc")
def test_a_cluster_a_shuffle_and_an_executor_that_is_killed(broker: BrokerProcess, cluster: str, tmp_path: Path) -> None:
    words = (url_of(broker), "source", "copy-cluster", str(tmp_path / "checkpoint"), str(BATCH), "3", cluster)
    limits = iter((13_000, 91_000))
    limit = next(limits)
    driver = Driver("-c", PROGRAM, *words)
    killed = 0
    for _ in range(LONG_S * 20):
        if there(broker, "copy-cluster") >= limit:
            running = executors(tmp_path / "work")
            assert running, "no executor to be killed"
            os.kill(running[0], signal.SIGKILL)
            killed += 1
            limit = next(limits, 1 << 60)
        try:
            driver._process.wait(timeout=0.05)
            break
        except subprocess.TimeoutExpired:
            continue
    driver.ends()
    assert killed == 2
    check_copy(broker, "copy-cluster")
