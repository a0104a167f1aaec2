"""Runs brokers and other programs by forking a process that has already imported their code: that takes a fifth of the CPU of
an ``exec``.

In most tests of processes the imports would cost more than the test itself. A forked broker has its own memory, descriptors,
environment, signals and process id, and runs ``toymq`` with its arguments, as an executed one. Two things differ: its
``/proc/PID/cmdline`` is that of the process it was forked from, and the interpreter's own environment variables (PYTHON…) were
read before the fork.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

REQUEST_MAX_BYTES = 1 << 17
TOYMQ = "from toymq_py.cli import main; main(prog_name='toymq')"
TOYMQCTL = "from toymqctl.cli import main; main(prog_name='toymqctl')"
PRELOADED = ("toymq_py.cli.serve", "toymq_py.daemon", "toymq_py.gateway", "toymq_py.observability.metrics_server")


class ForkedProcess:
    """A program with arguments, as ``python -c`` runs it, with the part of ``subprocess.Popen``'s interface that tests use."""

    def __init__(
        self, program: str, arguments: Sequence[str], environment: Mapping[str, str], stdout: int, stderr: int,
        folder: Path | None = None, preloaded: tuple[str, ...] = PRELOADED, warnings: str = "",
    ) -> None:  # fmt: skip
        """
        Args:
            preloaded: modules that are imported before the fork.
            warnings: the interpreter's option ``-W``; "" for none.
        """
        self._arguments = arguments
        self.returncode: int | None = None
        ended, says_end = os.pipe()
        request = json.dumps([program, list(arguments), dict(environment), str(folder or Path.cwd())]).encode()
        socket.send_fds(template(preloaded, warnings), [request], [stdout, stderr, says_end])
        os.close(says_end)
        self._ended: IO[str] = os.fdopen(ended)
        self.pid = int(self._ended.readline())

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(list(self._arguments), timeout)
            with self._ended:
                self.returncode = int(self._ended.readline())
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedBroker(ForkedProcess):
    """A forked broker, with the part of ``subprocess.Popen``'s interface that ``toymq.broker_process`` uses."""

    stdin = None

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], stderr: int, *, descriptors: int | None = None
    ) -> None:
        """``descriptors``: how many file descriptors the process may have."""
        limit = "" if descriptors is None else f"import resource as r; r.setrlimit(r.RLIMIT_NOFILE, {(descriptors,) * 2}); "
        read, stdout = os.pipe()
        super().__init__(limit + TOYMQ, arguments, environment, stdout, stderr)
        os.close(stdout)
        self.stdout: IO[str] = os.fdopen(read)


def run(
    program: str, *arguments: str, environment: Mapping[str, str], timeout_s: float, **how: Any
) -> "subprocess.CompletedProcess[str]":
    """Run a program to its end, like ``subprocess.run`` with captured output. ``how``: arguments of ``ForkedProcess``."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = ForkedProcess(program, arguments, environment, out.fileno(), errors.fileno(), **how)
        try:
            code = process.wait(timeout_s)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            process.wait(60)
            raise
        said = []
        for file in (out, errors):
            file.seek(0)
            said.append(file.read().decode())
        return subprocess.CompletedProcess([program, *arguments], code, *said)


def can_fork(environment: Mapping[str, str]) -> bool:
    """Whether a broker with this environment behaves the same when it is forked. Under ``coverage`` it must be executed, to be
    measured."""
    measured = any(name.startswith("COVERAGE_") for name in environment)
    return sys.platform == "linux" and not measured and _of_interpreter(environment) == _of_interpreter(_environment())


def _of_interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LD_", "LANG", "LC_"))}


@functools.cache
def _environment() -> Mapping[str, str]:
    from tests.support.broker_process import environment

    return environment()


@functools.cache
def template(preloaded: tuple[str, ...], warnings: str) -> socket.socket:
    """Start the process to fork from, and return a socket to it; it ends when the socket is closed."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        options = ["-P", *(["-W", warnings] if warnings else [])]
        command = [sys.executable, *options, "-m", "tests.support.forked_broker", str(its.fileno()), *preloaded]
        process = subprocess.Popen(command, env=_environment(), pass_fds=[its.fileno()])

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def fork_on_request(requests: socket.socket) -> tuple[str, list[str], dict[str, str], str, list[int]]:
    """Fork for each request, and send the requester the process id and the exit code. Returns, in the child only: its
    request."""
    running: dict[int, int] = {}
    woken, wakes = socket.socketpair()
    for end in (woken, wakes):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)
    while True:
        ready = select.select([requests, woken], [], [])[0]
        if woken in ready:
            woken.recv(1 << 12)
            while running:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                says_end = running.pop(pid)
                with suppress(BrokenPipeError):  # the requester was killed meanwhile
                    os.write(says_end, b"%d\n" % os.waitstatus_to_exitcode(status))
                os.close(says_end)
        if requests in ready:
            request, descriptors, _, _ = socket.recv_fds(requests, REQUEST_MAX_BYTES, 4)
            if not request:
                sys.exit()
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.default_int_handler)
                return *json.loads(request), descriptors
            says_end = running[pid] = descriptors.pop(2)
            for descriptor in descriptors:
                os.close(descriptor)
            os.write(says_end, b"%d\n" % pid)


def become(program: str, arguments: list[str], environment: dict[str, str], folder: str, descriptors: list[int]) -> None:
    """Turn this process into one that was executed with these arguments, and run the program."""
    os.dup2(descriptors[0], 1)
    os.dup2(descriptors[1], 2)
    for stdin in descriptors[3:]:
        os.dup2(stdin, 0)
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)  # noqa: PTH208
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["-c", *arguments]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    exec(compile(program, "<string>", "exec"), main.__dict__)


def leave(code: object) -> None:
    """End the process as the interpreter does, but without destroying every object of every module: that would copy all shared
    memory, and take longer than the start of a broker. Returns if the interpreter still has something to print."""
    if not isinstance(code, int | None):
        return
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    with suppress(AttributeError, OSError, ValueError):  # closed, or nothing reads it: the interpreter says so
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    for module in sys.argv[2:]:
        importlib.import_module(module)
    gc.freeze()  # a collection, as at the end of each process, would copy what is shared
    wanted = fork_on_request(socket.socket(fileno=int(sys.argv[1])))
    try:
        become(*wanted)
    except SystemExit as end:
        if wanted[0].endswith((TOYMQ, TOYMQCTL)):  # another program may show what it leaves open
            leave(end.code)
        raise
