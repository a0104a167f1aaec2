"""Things that some tests need on the machine, and checks of whether they are there.

    @require("tmpfs")                            # or pytestmark = require("nc", "strace")

A test whose requirement is missing is skipped with the reason; with ``TOYMQ_REQUIRE=tmpfs,strace`` it fails instead, so
that a CI that claims to have them cannot skip in silence. The hooks are in tests/conftest.py.
"""

import functools
import importlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping

import pytest

from tests.support import machines
from tests.support.etcd import find_etcd
from toymq_py.errors import ToymqError

ENVIRONMENT = "TOYMQ_REQUIRE"
PROBE_TIMEOUT_S = 20  # a JVM on a busy machine takes seconds


def _says(*command: str) -> str | None:
    """Return why ``command`` does not work here; None when it does."""
    if shutil.which(command[0]) is None:
        return f"no {command[0]} on PATH"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        return f"{' '.join(command)}: {said[-1]}"
    return None


def _any_of(*programs: str) -> str | None:
    found = any(shutil.which(program) for program in programs)
    return None if found else f"none of {', '.join(programs)} on PATH"


def _installed(*packages: str) -> str | None:
    """Return which packages are missing. They are looked up and not imported: some take half a second of CPU, in each worker of
    ``make test``."""
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def _tmpfs() -> str | None:
    """Check that a small file system can be mounted, to be filled up."""
    if os.geteuid() != 0:
        return "mounting needs root"
    with tempfile.TemporaryDirectory(prefix="toymq-probe-") as directory:
        missing = _says("mount", "-t", "tmpfs", "-o", "size=1m", "toymq-probe", directory)
        return missing or _says("umount", directory)


def _fuse() -> str | None:
    """Check for the FUSE device, the right to mount, and libfuse, which no Python package contains."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
        importlib.import_module("mfusepy")
    except (OSError, ImportError, AttributeError) as error:  # what it raises without the library depends on its version
        return str(error)
    return None if os.geteuid() == 0 else _any_of("fusermount3", "fusermount")


def _java() -> str | None:
    """Check for a Java for Spark; that of a Python package will do (make test installs it if the machine has none)."""
    try:
        importlib.import_module("pyspark")
        importlib.import_module("toymq_spark.java").ensure_java(dict(os.environ))
    except (ImportError, ToymqError) as error:
        return str(error)
    return None


PROBES: Mapping[str, Callable[[], str | None]] = {
    "root": lambda: None if os.geteuid() == 0 else "only root can become other users",
    "tmpfs": _tmpfs,
    "fuse": _fuse,
    "java": _java,
    "chromium": lambda: _any_of("chromium", "chromium-browser", "google-chrome"),
    "playwright": lambda: _installed("playwright"),
    "axe": lambda: _installed("axe_playwright_python"),
    "peers": lambda: _any_of("redis-server", "beanstalkd", "nats-server", "mosquitto", "rabbitmq-server"),
    "schemathesis": lambda: _installed("schemathesis"),
    "curl": lambda: _any_of("curl"),
    "amqp-clients": lambda: _installed("aio_pika", "celery", "pika"),
    "dramatiq": lambda: _installed("dramatiq", "pika"),
    "faststream": lambda: _installed("faststream", "aio_pika", "typer"),
    "taskiq": lambda: _installed("taskiq_aio_pika"),
    "flower": lambda: _installed("celery", "flower"),
    "netns": machines.missing,
    "etcd": lambda: find_etcd() or _says("etcd", "--version"),
    "delta": lambda: _installed("deltalake"),  # both come with '.[tables]'
    "iceberg": lambda: _installed("pyiceberg", "sqlalchemy"),
    "s3": lambda: _installed("moto", "flask", "obstore"),  # a server and its client, from PyPI
    "nc": lambda: _any_of("nc"),
    "proc": lambda: None if os.path.exists("/proc/self/statm") else "no /proc",  # noqa: PTH110 (a probe)
    "strace": lambda: _says("strace", "-o", os.devnull, "true"),  # containers often forbid it
}


@functools.cache
def missing(name: str) -> str | None:
    """Return why ``name`` is missing, None when it is there. Checked once per run, when the first test needs it."""
    return PROBES[name]()


def require(*names: str) -> pytest.MarkDecorator:
    """Mark a test, a class or (as ``pytestmark``) a module with what it needs."""
    if unknown := sorted(set(names) - set(PROBES)):
        raise ValueError(f"no such requirement: {', '.join(unknown)}; known: {', '.join(PROBES)}")
    return pytest.mark.require(*names)


def insisted(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the names in ``TOYMQ_REQUIRE``. Raises: ``pytest.UsageError`` for an unknown name: a typo must not mean "skip"."""
    names = frozenset(name.strip() for name in environ.get(ENVIRONMENT, "").split(",") if name.strip())
    if unknown := sorted(names - set(PROBES)):
        raise pytest.UsageError(f"{ENVIRONMENT}: no such requirement: {', '.join(unknown)}; known: {', '.join(PROBES)}")
    return names


def check(item: pytest.Item, insisted_on: frozenset[str]) -> None:
    """Skip ``item``, or fail it, when something it needs is missing."""
    for mark in item.iter_markers("require"):
        for name in mark.args:
            if reason := missing(name):
                if name in insisted_on:
                    pytest.fail(f"needs {name}, and {ENVIRONMENT} insists on it: {reason}", pytrace=False)
                pytest.skip(f"needs {name}: {reason}")


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The reason that a skipped test or module gave."""
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ")
    return str(report.longrepr)
