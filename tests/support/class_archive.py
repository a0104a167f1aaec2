"""An archive of the classes that Spark loads, from which the JVM of the tests maps them: to read and link more than ten
thousand anew takes it half of its first minute.

``make test`` sets ``TOYMQ_KEEP_CLASSES``: a run that finds no archive in its environment has its JVM write one at its end, of
the classes that the tests have used. That costs what two later runs save, so a CI, which throws it away, does without. A JVM
that finds an archive of another Java, or of other jars, goes on without it.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pyspark.sql import SparkSession

from toymq_spark.session import jvm_of

PLACE = Path(sys.prefix) / "spark-classes.jsa"
KEEP = "TOYMQ_KEEP_CLASSES"
WITHIN_S = 300
"""Writing it takes some ten seconds on a machine that is not busy; one that is too busy gets none."""


def options(place: Path) -> str:
    """Of a JVM that takes the classes from the archive, if there is one."""
    # A seventh of its start would be a check of Spark's classes.
    unverified = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Xlog:cds=off -Xlog:cds+dynamic=off"
    if place.exists():
        return f"{unverified} {shlex.quote(f'-XX:SharedArchiveFile={place}')}"
    return f"{unverified} {shlex.quote(f'-XX:ArchiveClassesAtExit={_written(place)}')}" if os.environ.get(KEEP) else unverified


@contextmanager
def kept(spark: SparkSession, place: Path) -> Iterator[None]:
    """Behind it the session has ended. If its JVM writes an archive, that is in place."""
    gateway, jvm = spark.sparkContext._gateway, jvm_of(spark)
    yield
    if not place.exists() and os.environ.get(KEEP) and gateway is not None and jvm is not None and jvm.stdin is not None:
        gateway.shutdown()
        jvm.stdin.close()  # which ends it
        with suppress(subprocess.TimeoutExpired):
            jvm.wait(WITHIN_S)
        jvm.kill()
        if _written(place).exists():  # not every Java can write one
            _written(place).replace(place)


def _written(place: Path) -> Path:
    """Where the JVM of this process writes."""
    return place.with_suffix(f".{os.getpid()}")
