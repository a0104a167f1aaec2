"""One Spark session for all tests here (it takes 5 s to start), and one broker."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support import class_archive
from tests.support.broker_process import BrokerProcess
from tests.support.forked_scripts import ForkedScripts
from tests.support.requirements import missing
from toymq import sync
from toymq_spark.session import build_session

WAIT_S = 300
"""For what happens within a second on a machine that is not busy."""
TABLES = [f"toymq_spark.tables.{kind}" for kind in ("delta", "iceberg") if missing(kind) is None]
PRELOADED = (
    "pyspark.worker", "pyspark.sql.datasource_internal", "pyspark.sql.pandas.serializers", "toymq_spark.datasource", "pandas",
    *TABLES,
)  # fmt: skip
PYTHON = """\
import os, runpy, sys
sys.path[:0] = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place not in sys.path]
option, what, *arguments = sys.argv[1:]
sys.argv = [what, *arguments]
if option == "-m":
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    exec(what)
"""
"""``python -m MODULE`` and ``python -c PROGRAM`` as Spark starts them, several times a query: 0.4 s of imports each time, and
where they take ten seconds on a busy machine, the query fails."""


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file for stderr of Spark's processes, which a user at a terminal would see."""
    return tmp_path_factory.mktemp("console") / "stderr"


@contextmanager
def stderr_to(file: Path) -> Iterator[None]:
    """Write to a file what processes started meanwhile, and their children, write to stderr."""
    before = os.dup(2)
    with file.open("ab") as out:
        os.dup2(out.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, console: Path) -> Iterator[SparkSession]:
    place = tmp_path_factory.mktemp("spark")
    with ForkedScripts(place, PRELOADED) as scripts:
        scripts.write(place / "python", PYTHON)
        with pytest.MonkeyPatch.context() as patch, stderr_to(console):
            patch.setenv("PYSPARK_PYTHON", str(place / "python"))
            session = start(place)
        with class_archive.kept(session, class_archive.PLACE):
            yield session
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the collector
                session.stop()


def start(place: Path) -> SparkSession:
    return build_session(
        "tests",
        "local[2]",
        {
            "spark.sql.shuffle.partitions": "3",
            "spark.sql.warehouse.dir": str(place / "warehouse"),
            "spark.local.dir": str(place / "local"),
            "spark.sql.streaming.metricsEnabled": "false",
            # A JVM that lives for a minute is warm too late: no second compiler, no code made for each query.
            "spark.driver.extraJavaOptions": f"-Dderby.system.home={place} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
            + class_archive.options(class_archive.PLACE),
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    )


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("data") / "d") as running:
        yield running


@pytest.fixture
def url(broker: BrokerProcess) -> str:
    return f"toymq://127.0.0.1:{broker.port}"


@pytest.fixture
def client(url: str) -> Iterator[sync.Client]:
    with sync.connect(url) as connected:
        yield connected
