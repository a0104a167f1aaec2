"""Make the golden data directory: ``python -m tests.golden.make_golden DIRECTORY``. See README.md here."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.support.frames import encode_attributes, encode_frame
from toymq_py.cli.dump import as_json
from toymq_py.storage import offsets, segment_heads
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.verify import verify
from toymq_py.storage.offsets import OffsetsState
from toymq_py.storage.record import Frame
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import UNLESS_UNACKNOWLEDGED, segment_name

TS_NS = 1_781_767_800_000_000_000
FS = RealFileSystem()


def frame(msg_id: int, payload: bytes, key: bytes = b"", block: bytes = b"") -> bytes:
    return encode_frame(msg_id, TS_NS + msg_id * 1_000_000, key, payload, block)


def consumer(start: int, last_acked: int | None, above: list[list[int]], attempts: list[list[int]]) -> dict[str, object]:
    """A consumer's object in the offsets file."""
    return {
        "since_ns": TS_NS, "start": start, "has_acked": last_acked is not None, "last_acked": last_acked or 0,
        "acked_above": above, "attempts": attempts,
    }  # fmt: skip


class Directory:
    """One topic's directory."""

    def __init__(self, data: Path, topic: str) -> None:
        self.path = data / "topics" / topic
        self.path.mkdir(parents=True)

    def segment(self, first_id: int, *frames: bytes, sealed: bool = False) -> None:
        path = self.path / segment_name(first_id)
        path.write_bytes(b"".join(frames))
        if sealed:
            segment = scan_segment(FS, str(path), first_id).segment
            (self.path / f"{first_id:020d}.idx").write_bytes(segment.sidecar())

    def offsets(self, name: str, state: OffsetsState) -> None:
        (self.path / name).write_bytes(offsets.encode(state))


def every_kind(data: Path) -> None:
    """Empty and full, text and binary, keys, every attribute, one that no version knows yet."""
    topic = Directory(data, "every.kind")
    topic.segment(
        0,
        frame(0, b""),
        frame(1, b"hello"),
        frame(2, bytes(range(256)), b"key-2"),
        frame(3, b"k" * 3, b"k" * 512),
        frame(4, b"later", b"", encode_attributes(deliver_at_ns=TS_NS + 10**15)),
        frame(5, b"not for ever", b"", encode_attributes(expires_at_ns=TS_NS + 10**15)),
        frame(6, b"traced", b"key-6", encode_attributes(headers=b"trace: 0-1\nname: w\xc3\xb6rld\n")),
        frame(7, b"numbered", b"producer", encode_attributes(sequence=2**64 - 1)),
        frame(8, b"", b"all", encode_attributes(deliver_at_ns=1, expires_at_ns=2, headers=b"a: b\n", sequence=3)),
        frame(9, b"from a later version", b"", b"\xc8\x03\x00\x00\x00new"),
        sealed=True,
    )
    topic.segment(10, frame(10, frame(11, b"a frame is no record inside a payload")), frame(11, b"the last"))


def hole(data: Path) -> None:
    """Record 2 was hit; those behind it are kept."""
    frames = [frame(n, b"record %d " % n * 5, b"h%d" % n) for n in range(6)]
    frames[2] = frames[2][:40] + b"\xff" + frames[2][41:]
    Directory(data, "hole").segment(0, *frames)


def torn(data: Path) -> None:
    """A kill in the middle of a write, in front of preallocated space."""
    Directory(data, "torn").segment(0, frame(0, b"whole"), frame(1, b"whole too"), frame(2, b"torn" * 10)[:50], bytes(200))


def consumers(data: Path) -> None:
    """Both generations of the offsets, and settings."""
    topic = Directory(data, "consumers")
    topic.segment(0, *[frame(n, b"%d" % n) for n in range(8)])
    topic.offsets("offsets.json.prev", OffsetsState(0, 5, {"billing": consumer(0, 0, [], [])}))
    state = {
        "billing": consumer(0, 2, [[4, 5]], [[3, 3, 7]]),
        "fresh": consumer(0, None, [], []),
        "late": consumer(6, None, [], []),
    }
    topic.offsets("offsets.json", OffsetsState(0, 8, state))
    (topic.path / "topic.json").write_bytes(b'{\n  "visibility": 5000\n}\n')


def previous(data: Path) -> None:
    """The present generation is damaged: the one before it serves."""
    topic = Directory(data, "previous")
    topic.segment(0, *[frame(n, b"%d" % n) for n in range(4)])
    topic.offsets("offsets.json.prev", OffsetsState(0, 3, {"c": consumer(0, 1, [], [])}))
    topic.offsets("offsets.json", OffsetsState(0, 4, {"c": consumer(0, 3, [], [])}))
    path = topic.path / "offsets.json"
    path.write_bytes(path.read_bytes().replace(b'"last_acked": 3', b'"last_acked": 9'))


def retained(data: Path) -> None:
    """Begins at 10; retention took 20 to 29 from behind a message that is stuck."""
    topic = Directory(data, "retained")
    topic.segment(10, *[frame(n, b"%d" % n) for n in range(10, 20)], sealed=True)
    topic.segment(30, *[frame(n, b"%d" % n) for n in range(30, 33)])
    topic.offsets("offsets.json", OffsetsState(10, 33, {"c": consumer(0, 14, [[16, 29]], [[15, 15, 3]])}, ((20, 29),)))


def producers(data: Path) -> None:
    """Producers beside a plain key, the sealed segment with its sidecar; behind a hole a sequence does not count."""
    topic = Directory(data, "producers")

    def sequenced(msg_id: int, name: bytes, sequence: int, headers: bytes = b"") -> bytes:
        return frame(msg_id, b"%b %d" % (name, sequence), name, encode_attributes(headers=headers, sequence=sequence))

    topic.segment(
        0, sequenced(0, b"p", 0), sequenced(1, b"q", 7, b"a: b\n"), frame(2, b"plain", b"k"), sequenced(3, b"p", 5), sealed=True
    )
    damaged = sequenced(5, b"p", 7)
    topic.segment(4, sequenced(4, b"p", 6), damaged[:-1] + bytes([damaged[-1] ^ 1]), sequenced(6, b"p", 8))


def mixed(data: Path) -> None:
    """The middle one of three segments is another log's, and what the segments begin with is known."""
    topic = Directory(data, "mixed")
    topic.segment(0, *[frame(n, b"%d" % n) for n in range(2)], sealed=True)
    topic.segment(2, *[frame(n, b"%d" % n) for n in range(2, 4)])
    topic.segment(4, *[frame(n, b"%d" % n) for n in range(4, 6)])
    segment_heads.store(FS, str(topic.path), segment_heads.read_heads(FS, str(topic.path), (0, 2, 4), {}))
    topic.segment(2, *[frame(n, b"of another log") for n in range(2, 4)])


TOPICS: tuple[Callable[[Path], None], ...] = (every_kind, hole, torn, consumers, previous, retained, producers, mixed)


def make(data: Path) -> None:
    """Write all of it below ``data``, which must not exist."""
    for topic in TOPICS:
        topic(data)


def dump(data: Path) -> Iterator[str]:
    """What ``toymq dump`` prints of each topic, and what ``toymq verify`` finds."""
    for report in verify(FS, str(data)):
        yield f"== {report.topic}: {report.records} records, {report.lost} lost, ids {report.first_id} to {report.next_id}"
        for finding in report.findings:
            name = finding.path.removeprefix(f"{data}/topics/")
            text = finding.text.replace(UNLESS_UNACKNOWLEDGED, "")  # said since ADR 0204
            yield f"{'damage' if finding.damage else 'note'}: {name}: {text}"
        for item in dump_topic(FS, f"{data}/topics/{report.topic}"):
            yield json.dumps(as_json(item) if isinstance(item, Frame) else {"note": item})


if __name__ == "__main__":
    target = Path(sys.argv[1])
    make(target / "data")
    (target / "dump.txt").write_text("\n".join(dump(target / "data")) + "\n")
