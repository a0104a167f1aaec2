"""What holds for every test: requirements of the machine, and a run that says what it skipped and why."""

import gc
import logging
import os
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from tests.support import requirements, scheduling, shares

# A deadline measures the neighbours on a busy machine; a bound on time belongs into a test that says so.
hypothesis.settings.register_profile("seeded", deadline=None, derandomize=True, max_examples=shares.examples(100))
hypothesis.settings.register_profile("full", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile(shares.PROFILE)
if shares.PROFILE == "seeded" and hasattr(providers, "_get_local_constants"):
    # Else it draws constants of the modules that are loaded, too: other examples when a file runs alone, and each worker reads
    # the sources of all modules for it, a tenth of its collection.
    providers._get_local_constants = lambda: providers._local_constants

gc.disable()  # until pytest_collection_finish: collecting ten thousand tests leaves nearly no garbage
INSISTED = pytest.StashKey[frozenset[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[INSISTED] = requirements.insisted(os.environ)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job of a shell's background, which has no Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Workers import the files in different orders: what one has compiled the others read, and no file is compiled by all."""
    if hasattr(session.config, "workerinput"):
        scheduling.import_ahead(session.config)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: no garbage collection of a test, or for one, looks through it. Nor
    is there one here, which would look through all of it."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files in the order in which the workers take them."""
    if hasattr(config, "workerinput"):
        items[:] = scheduling.in_order(items)


@pytest.hookimpl(optionalhook=True)  # of xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> scheduling.Scheduling | None:
    return scheduling.Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of the test."""
    logging.getLogger("toymq_py").addHandler(BUGS)
    requirements.check(item, item.config.stash[INSISTED])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    terminalreporter.section("skipped, and why")
    for report in skipped:
        terminalreporter.line(f"{report.nodeid}: {requirements.reason_of(report)}")
    if not skipped:
        terminalreporter.line("nothing was skipped")


@pytest.fixture
def thawed() -> Iterator[None]:
    """For a test that freezes objects itself, or counts those that are frozen."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture
def without_log() -> Iterator[None]:
    """For tests of thousands of histories: pytest keeps every line that is logged, 8 GiB in ``make torture``, and it takes as
    long as the histories."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module", autouse=True)
def _clients_logger_is_left_as_it_was() -> Iterator[None]:
    """A command takes the client's logger for its process, which is ours when it is called in it."""
    logger = logging.getLogger("toymq")
    before = logger.propagate, list(logger.handlers), logger.level
    yield
    logger.propagate, logger.handlers, level = before
    logger.setLevel(level)


class _Bugs(logging.Handler):
    """Collects what the log says of exceptions that were not expected where they were caught."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and "bug" in record.msg:
            self.found.append(f"{record.getMessage()}: {record.exc_info[1]!r}")


BUGS = _Bugs()
"""Where a callback that raises is logged, so that others are still called, an assertion in it would fail no test. (Hooks: a
fixture would cost a quarter of what pytest needs for a short test.)"""


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Behind the fixtures of the test."""
    try:
        yield
    finally:
        logging.getLogger("toymq_py").removeHandler(BUGS)
        found = BUGS.found[:]
        BUGS.found.clear()
    if found and item.get_closest_marker("provokes_bugs") is None:
        pytest.fail("\n".join(found))
