"""A JVM class-data archive of the classes that Spark loads, which the tests' JVM maps into memory: to load and link these more
than ten thousand classes takes half of the JVM's first minute.

``make test`` sets ``TOYMQ_KEEP_CLASSES``: if there is no archive in the Python environment yet, the JVM writes one at its end,
with the classes that the tests have used. That takes as long as two later runs save, so CI, which would throw it away, does not
do it. A JVM ignores an archive that was written by another Java, or for other jars.
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
    """Return JVM options: to use the archive if it exists, else to write it at the end if ``TOYMQ_KEEP_CLASSES`` is set."""
    # A seventh of its start would be a check of Spark's classes.
    unverified = "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote -Xlog:cds=off -Xlog:cds+dynamic=off"
    if place.exists():
        return f"{unverified} {shlex.quote(f'-XX:SharedArchiveFile={place}')}"
    return f"{unverified} {shlex.quote(f'-XX:ArchiveClassesAtExit={_written(place)}')}" if os.environ.get(KEEP) else unverified


@contextmanager
def kept(spark: SparkSession, place: Path) -> Iterator[None]:
    """A context after which the session's JVM has ended; if the JVM writes an archive, that is then at ``place``."""
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
    """The path to which this process's JVM writes its archive."""
    return place.with_suffix(f".{os.getpid()}")
