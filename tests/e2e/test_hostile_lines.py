"""JSON lines over HTTP that never end, or are long and expensive to parse: they are refused at a limit that the answer names,
and meanwhile the broker works for others. Counted in bytes and in CPU time of the broker, not in seconds, so a busy machine
changes nothing."""

import json
import os
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.broker_process import BrokerProcess, Wire
from toymq_py.gateway.publish_operations import line_bytes_max

MIB = 1024 * 1024
LINE_MAX = line_bytes_max(MIB)
HEAD = (
    b"POST /v1/topics/t/messages:batch HTTP/1.1\r\nHost: localhost\r\n"
    b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
)
PIECE_BYTES = 64 * 1024
OTHERS_CPU_S = 0.5
"""CPU time of the broker from a PING of another connection to its answer, at most. It was 2 to 3 s."""
SENT_MAX = LINE_MAX + 16 * MIB
"""Beyond the limit is what the sockets hold, and what is read and dropped for the sake of the answer."""


class Upload:
    """A chunked request without an end, and another connection that must be served meanwhile."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        address = urlsplit(broker.http)
        self._socket = socket.create_connection((str(address.hostname), int(address.port or 0)))
        self.sent = 0
        self.most_cpu_s = 0.0
        self.most_rss_bytes = 0

    def __enter__(self) -> "Upload":
        self._socket.sendall(HEAD)
        self._socket.setblocking(False)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, piece: bytes, other: Wire) -> bool:
        """Send one chunk, with a PING of ``other`` behind each part that was taken. Returns: whether an answer came instead."""
        chunk = memoryview(b"%x\r\n%b\r\n" % (len(piece), piece))
        while chunk and not self._is_answered():
            taken = 0
            try:
                taken = self._socket.send(chunk)
            except BlockingIOError:
                pass
            except ConnectionError:
                return True
            self.sent, chunk = self.sent + taken, chunk[taken:]
            self.ping(other)
        return bool(chunk)

    def ping(self, other: Wire) -> None:
        before = self._cpu_s()
        assert other.ask(b"PING\n") == b"PONG"
        self.most_cpu_s = max(self.most_cpu_s, self._cpu_s() - before)
        self.most_rss_bytes = max(self.most_rss_bytes, self._broker.rss_bytes())

    def answer(self, other: Wire) -> tuple[int, dict[str, str]]:
        """Read status and problem, with PINGs of ``other`` until they arrive."""
        while not self._is_answered():
            self.ping(other)
        self._socket.setblocking(True)
        with self._socket.makefile("rb") as reader:
            status = int(reader.readline().split()[1])
            length = 0
            while (line := reader.readline()) != b"\r\n":
                name, _, value = line.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            return status, json.loads(reader.read(length))

    def _is_answered(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self._broker.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize(
    ("start", "part"), [(b'{"payload": "', b"x"), (b"", b"[],"), (b'{"payload": "', b"\\u0434"), (b"", b" ")]
)
def test_an_endless_json_line_is_refused_at_its_limit_and_holds_nothing_up(tmp_path: Path, start: bytes, part: bytes) -> None:
    with BrokerProcess(tmp_path / "d", "--http", "127.0.0.1:0", "--max-payload", "1MiB") as broker, broker.connect() as other:
        assert other.ask(b"PING\n") == b"PONG"
        before = broker.rss_bytes()
        with Upload(broker) as upload:
            piece = part * (PIECE_BYTES // len(part))
            answered = upload.send(start + piece, other)
            while not answered and upload.sent <= SENT_MAX:
                answered = upload.send(piece, other)
            assert answered, f"{upload.sent} bytes of a line were taken, and no answer came"
            assert upload.sent > LINE_MAX, "as long a line as the limit allows is taken"
            status, problem = upload.answer(other)
            assert (status, problem["code"]) == (413, "PAYLOAD_TOO_LARGE")
            assert f"a line has more than {LINE_MAX} bytes" in problem["detail"], "the limit is named"
            assert upload.most_rss_bytes - before < 4 * LINE_MAX, "memory is bounded by the limit"
            assert upload.most_cpu_s < OTHERS_CPU_S, f"others waited for {upload.most_cpu_s} s of work"


@pytest.mark.parametrize("part", [b"[],", b"{},", b'"",', b"1,"])
def test_a_line_that_is_dear_to_parse_is_refused_before_it_holds_others_up(tmp_path: Path, part: bytes) -> None:
    """Found: a line of two million empty lists, each an object, held up every other client for 2 to 3 s."""
    options = "--http", "127.0.0.1:0", "--max-payload", "1MiB"
    with BrokerProcess(tmp_path / "d", *options) as broker, broker.connect() as other, Upload(broker) as upload:
        size = (LINE_MAX - 2 * PIECE_BYTES) // PIECE_BYTES
        pieces = [b"[", *[part * (PIECE_BYTES // len(part))] * size, b"0]\n"]
        assert not any(upload.send(piece, other) for piece in pieces), "the line is below the limit of its length"
        assert not upload.send(b"", other), "the body ends"
        status, problem = upload.answer(other)
        assert (status, problem["code"]) == (422, "BAD_ARGUMENT")
        assert "characters are outside of long strings" in problem["results"][0]["detail"]
        assert upload.most_cpu_s < OTHERS_CPU_S, f"others waited for {upload.most_cpu_s} s of work"
