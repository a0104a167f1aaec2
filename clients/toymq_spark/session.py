"""The one place where a Spark session is made, with the settings that this data source wants."""

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
    "spark.sql.python.filterPushdown.enabled": "true",
    # How long a Python worker may take until it has greeted the JVM: Spark's 15 s are too short beside other work, and a query
    # that fails for it fails for good. (For the worker of a streaming source Spark has fixed 10 s.)
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.ui.showConsoleProgress": "false",
}
LOCAL_SETTINGS = {  # a driver with its executors inside serves no other host
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


def build_session(app: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> SparkSession:
    """
    Args:
        master: None leaves it to ``spark-submit``.
        settings: go before those of this file.

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
    """The process that ``build_session`` started; None where ``spark-submit`` did."""
    found: subprocess.Popen[bytes] | None = getattr(getattr(spark.sparkContext, "_gateway", None), "proc", None)
    return found


def apart(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session of the same Spark with settings of its own, which change nothing for others."""
    own = spark.newSession()
    for name, value in settings.items():
        own.conf.set(name, value)
    own.dataSource.register(ToymqDataSource)
    return own
