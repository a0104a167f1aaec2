"""What is fuzzed: pure functions from bytes to nothing, which raise when a promise is broken.

Each is used three times: by Hypothesis and with the kept corpus in the default tests (test_fuzz.py), and by atheris
(``make fuzz TARGET=parser``). The first bytes of an input are knobs, such as where a stream is cut; the rest is what the
target is about, so that an example remains readable.

    parser     a client's bytes, in pieces              protocol.md, "Framing" and "Errors"
    client     a broker's bytes, in pieces              the same, from the other end
    recovery   a topic's log                            storage.md, "Recovery"
    files      any one file of a data directory         reliability.md: one bad file harms its topic alone
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from tests.support.broker_rig import DIR, BrokerRig
from tests.support.logs import PATH, disk_with, ids_of, recover, report_of, some_frames
from tests.support.sim_disk import SimDisk
from tests.support.wire_events import events_of, flat
from toymq_py.errors import REQUEST_ERRORS, DamagedData, ProtocolViolation
from toymq_py.protocol import ClientConnection, Command, Rejected, ServerConnection, encode_command
from toymq_py.protocol.frames import LINE_BYTES_MAX
from toymq_py.storage.fs import write_all
from toymq_py.storage.offline.dump import dump_topic
from toymq_py.storage.offline.verify import verify_topic
from toymq_py.storage.record import FRAME_OVERHEAD, Frame, claimed_extent, crc32
from toymq_py.storage.segment import segment_name

PAYLOADS_MAX = (1, 7, 100, 5000)
RUNS_MAX = (1, 2, 7, 512)
INPUT_BYTES_MAX = 16 * 1024
"""Longer inputs find nothing more here and take long."""


def pieces(data: bytes, seed: int) -> list[bytes]:
    """The stream in pieces. Seed 0 leaves it whole, 1 cuts it into bytes."""
    if seed == 0:
        return [data]
    if seed == 1:
        return [data[n : n + 1] for n in range(len(data))]
    rng = random.Random(seed)
    cuts = sorted(rng.randrange(len(data) + 1) for _ in range(seed % 16))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


# -- the parsers


def parser(data: bytes) -> None:
    """Any split gives the same events; each is a command that can be said again, or a documented error; memory is bounded."""
    knobs, stream = data[:2].ljust(2, b"\0"), data[2:INPUT_BYTES_MAX]
    max_payload, max_commands = PAYLOADS_MAX[knobs[1] & 3], RUNS_MAX[knobs[1] >> 2 & 3]
    whole = events_of(stream, max_payload=max_payload)
    parts = pieces(stream, knobs[0])
    heard = _hear(parts, max_payload, max_commands)
    assert (flat(heard.commands), heard.failed, heard.torn) == whole, "another split, other events"
    refusals = [command.error for command in heard.commands if isinstance(command, Rejected)]
    for error in refusals:
        assert error.code in REQUEST_ERRORS
        assert str(error).isprintable()
    assert sum(error.fatal for error in refusals) == heard.failed, "a fatal error is the last, and said once"
    for command in heard.commands:
        if not isinstance(command, Rejected):
            again = _hear([encode_command(command)], max_payload, 512)
            assert flat(again.commands) == flat([command]), "what was heard cannot be said"


class _Heard:
    def __init__(self, connection: ServerConnection, commands: list[Command]) -> None:
        self.commands = commands
        self.failed = connection.failed
        self.torn = connection.ended_torn


def _hear(parts: Iterable[bytes], max_payload: int, max_commands: int) -> _Heard:
    connection = ServerConnection(max_payload)
    commands: list[Command] = []
    for part in parts:
        connection.receive_data(part)
        while found := connection.next_commands(max_commands):
            commands += found
        held = connection.buffered_bytes
        assert held <= max(LINE_BYTES_MAX, max_payload + 1), f"{held} bytes wait for the rest of one command"
    connection.receive_eof()
    return _Heard(connection, commands)


def client(data: bytes) -> None:
    """Any split gives the same replies, or all splits a ``ProtocolViolation``."""
    stream = data[1:INPUT_BYTES_MAX]
    whole, broken = _replies([stream])
    parts, also_broken = _replies(pieces(stream, data[0] if data else 0))
    assert broken == also_broken, "a violation in one split only"
    assert broken or whole == parts, "another split, other replies"


def _replies(parts: Iterable[bytes]) -> tuple[list[object], bool]:
    connection = ClientConnection()
    replies: list[object] = []
    try:
        for part in parts:
            connection.receive_data(part)
            replies += connection.next_replies()
    except ProtocolViolation:
        return replies, True
    return replies, False


# -- the disk

KNOB_REPAIR, KNOB_SECOND, KNOB_PREALLOCATED = 1, 2, 4


def recovery(data: bytes) -> None:
    """Whatever the log holds: recovery mends it once and for good, what it returns is valid and ascends, verify agrees."""
    knobs, log = data[:3].ljust(3, b"\0"), data[3:INPUT_BYTES_MAX]
    if knobs[0] & KNOB_REPAIR:
        log = repaired(log)
    segments = {0: log}
    if knobs[0] & KNOB_SECOND:
        cut = len(log) * knobs[1] // 256
        segments = {0: log[:cut], 1 + knobs[2]: log[cut:]}
    if knobs[0] & KNOB_PREALLOCATED:
        segments[max(segments)] += bytes(500)
    _recovery(disk_with(segments))


def _recovery(disk: SimDisk) -> None:
    said = report_of(disk)
    try:
        found = recover(disk)
    except DamagedData:
        assert said.damaged, "verify says so, too"
        return
    ids = ids_of(found)
    assert said.next_id == found.next_id
    lost = {msg_id for first, last in found.lost for msg_id in range(first, last + 1)}
    assert said.lost == len(lost), "verify and recovery count the same losses"
    records = [item for item in dump_topic(disk, PATH) if isinstance(item, Frame)]  # each with its checksum, or it raises
    read = [record.msg_id for record in records]
    assert read == [msg_id for msg_id in ids if msg_id not in lost], "ids ascend, and a record stands for each that is not lost"
    assert said.records == len(read)
    again = recover(disk)
    assert (again.next_id, again.first_id) == (found.next_id, found.first_id), "mended once and for good"
    assert again.torn_bytes == (found.torn_bytes if found.segments and found.segments[-1].damages else 0)
    assert (again.lost, again.removed, again.keys) == (found.lost, found.removed, found.keys)


def repaired(log: bytes) -> bytes:
    """Return the log with the right checksum in each frame that could be one, since a fuzzer never guesses a checksum."""
    data = bytearray(log)
    at = 0
    while at + FRAME_OVERHEAD <= len(data):
        claim = claimed_extent(bytes(data), at)
        if claim is None or at + claim[1] > len(data):
            at += 1
            continue
        end = at + claim[1]
        data[end - 4 : end] = crc32(bytes(data[at : end - 4])).to_bytes(4, "little")
        at = end
    return bytes(data)


FIRST, SECOND = b"".join(some_frames(6)), b"".join(some_frames(4, seed=2, first_id=6))
"""The topic's two segments, when they are not what is tried."""
FILES = ("offsets.json", "offsets.json.prev", segment_name(0)[:-4] + ".idx", "topic.json", segment_name(0), segment_name(6))
CHECKED = {"offsets.json": b"state", "offsets.json.prev": b"state", FILES[2]: b"segment"}


def files(data: bytes) -> None:
    """One file of a topic is anything at all, its checksum right: the broker starts, serves the topic beside it, and this one
    or says why not; nothing raises."""
    name, content = FILES[data[0] % len(FILES)] if data else FILES[0], data[1:INPUT_BYTES_MAX]
    if name in CHECKED:
        content = b'{"crc32": "%08x", "%b": %b}\n' % (crc32(content), CHECKED[name], content)
    disk = _directory({segment_name(0): FIRST, segment_name(6): SECOND, name: content})
    verify_topic(disk, f"{DIR}/topics/t", "t")
    with suppress(DamagedData):
        list(dump_topic(disk, f"{DIR}/topics/t"))
    rig = BrokerRig(disk=disk)
    assert ("t" in rig.broker.topics) != ("t" in rig.broker.unopened)
    assert [outcome.error for outcome in rig.publish("other", b"x")] == [None]
    if "t" in rig.broker.topics:
        subscription = rig.subscribe("t", "new")
        ids = [msg_id for msg_id, _ in rig.take(subscription)]
        assert ids == sorted(set(ids))
        list(rig.broker.describe(None))
        rig.flush("t")
    rig.broker.close()


def _directory(contents: Mapping[str, bytes]) -> SimDisk:
    disk = SimDisk(random.Random(1), tracing=False)
    for path in (DIR, f"{DIR}/topics", f"{DIR}/topics/t"):
        disk.mkdir(path)
    for name, content in contents.items():
        file = disk.open(f"{DIR}/topics/t/{name}", create=True)
        write_all(file, content, 0)
        file.sync()
        file.close()
    return disk


TARGETS: dict[str, Callable[[bytes], None]] = {"parser": parser, "client": client, "recovery": recovery, "files": files}


def run(target: str, data: bytes) -> Any:
    """Run a target on one input, with the broker's logging off."""
    logging.disable(logging.CRITICAL)
    try:
        return TARGETS[target](data)
    finally:
        logging.disable(logging.NOTSET)
