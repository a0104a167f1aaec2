"""What a worker knows of the partitioned topics of another one. ADR 0252, 0260."""

import os
import signal
import socket
from pathlib import Path

from tests.support.worker_processes import serving
from toymq_py.placement import worker_of


def test_a_worker_hears_of_partitions_that_another_one_has_made_since_it_looked(tmp_path: Path) -> None:
    """A worker learns of partitions created or deleted by another one; so does a worker that was replaced. No command reads the
    disk for this."""
    data_dir, home = tmp_path / "data", worker_of("orders", 2)
    with serving(data_dir, 2) as running:
        running.ready(2)
        half = b"ERR PLACEMENT_UNKNOWN orders has its partitions at some workers "
        for _ in range(2):
            with running.wire(1 - home) as wire, socket.socket(socket.AF_UNIX) as of_one:
                of_one.connect(str(data_dir / f"workers/{home}.listen"))
                none = b"ERR NO_SUCH_TOPIC there is no topic orders"
                for command, answer in ((b"", none), (b"CREATE orders partitions=2\n", half), (b"DELETE orders\n", none)):
                    if command:
                        of_one.sendall(command)
                        assert of_one.recv(1000).startswith(b"OK ")
                    for _ in range(2):
                        assert wire.ask(b"DESCRIBE orders\n").startswith(answer)
            os.kill(running.pids[home], signal.SIGKILL)
            running.ready(1)
