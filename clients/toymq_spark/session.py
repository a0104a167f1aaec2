"""Creates Spark sessions with this data source and its settings."""

import os
import subprocess
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from toymq_spark.datasource import ToymqDataSource
from toymq_spark.java import ensure_java

SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",  # between JVM and Python: a task costs 31 ms instead of 57
    # Time for a Python worker to connect to the JVM: Spark's 15 s are too short on a busy machine, and end the query. (For the
    # worker of a streaming source 10 s are fixed.)
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS = {  # a local driver serves no other host
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def build_session(app: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Create a session.

    Args:
        master: Spark's master; None leaves it to ``spark-submit``.
        settings: Spark settings, which override those of this module.

    Raises: NoJava.
    """
    ensure_java(os.environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # Spark takes the first python3 on PATH, which has no toymq_spark
    local = LOCAL_SETTINGS if master is not None and master.startswith("local") else {}
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in {**SETTINGS, **local, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ToymqDataSource)
    return spark


def jvm_of(spark: SparkSession) -> "subprocess.Popen[bytes] | None":
    """Return the JVM that ``build_session`` started; None if ``spark-submit`` started it."""
    found: subprocess.Popen[bytes] | None = getattr(getattr(spark.sparkContext, "_gateway", None), "proc", None)
    return found


def apart(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Create another session in the same Spark application, with settings of its own."""
    own = spark.newSession()
    for name, value in settings.items():
        own.conf.set(name, value)
    own.dataSource.register(ToymqDataSource)
    return own
