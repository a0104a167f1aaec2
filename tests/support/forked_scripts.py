"""Programs in a directory on a shell's PATH, which are forked like those of ``forked_broker``: the shell executes a script of a
few lines, which passes its descriptors to the tests' process and waits for the exit code.
"""

import os
import socket
import sys
import threading
from pathlib import Path
from types import TracebackType

from tests.support.broker_process import environment
from tests.support.forked_broker import PRELOADED, REQUEST_MAX_BYTES, can_fork, template

SCRIPT = """\
#!{python} -IS
import os, sys
from json import dumps
from socket import AF_UNIX, SOCK_SEQPACKET, send_fds, socket
ended, says_end = os.pipe()
with socket(AF_UNIX, SOCK_SEQPACKET) as forks:
    forks.connect({place!r})
    request = [{program!r}, sys.argv[1:], dict(os.environ), os.getcwd()]
    send_fds(forks, [dumps(request).encode()], [1, 2, says_end, 0])
os.close(says_end)
with open(ended) as lines:
    pid, code = lines.read().split()
sys.exit(int(code) % 256)
"""


class ForkedScripts:
    """Serves the scripts that ``write`` has written. A context manager."""

    def __init__(self, folder: Path, preloaded: tuple[str, ...] = (*PRELOADED, "toymqctl.cli")) -> None:
        """
        Args:
            folder: where the socket is.
            preloaded: modules that are imported before the fork.
        """
        self._preloaded = preloaded
        self._forks = can_fork(environment())
        if not self._forks:
            return
        self._place = str(folder / "forks")
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._thread = threading.Thread(target=self._forward, name="forked scripts")

    def __enter__(self) -> "ForkedScripts":
        if self._forks:
            self._listening.bind(self._place)
            self._listening.listen()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._forks:
            self._listening.shutdown(socket.SHUT_RDWR)  # ends accept
            self._thread.join()
            self._listening.close()

    def write(self, path: Path, program: str) -> None:
        """Write a script that runs the program; if no process can be forked, the script executes it."""
        executes = f"#!{sys.executable}\n{program}\n"
        forks = SCRIPT.format(python=sys.executable, place=self._place, program=program) if self._forks else executes
        path.write_text(forks)
        path.chmod(0o755)

    def _forward(self) -> None:
        while True:
            try:
                asks, _ = self._listening.accept()
            except OSError:
                return
            with asks:
                request, descriptors, _, _ = socket.recv_fds(asks, REQUEST_MAX_BYTES, 4)
                socket.send_fds(template(self._preloaded, ""), [request], descriptors)
                for descriptor in descriptors:
                    os.close(descriptor)
