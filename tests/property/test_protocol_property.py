"""The protocol parser: any split of the bytes gives the same events, any bytes an event or a documented error, and every
command and reply survives encoding and decoding."""

from contextlib import suppress
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.shares import examples
from tests.support.wire_events import events_of, flat
from toymq_py.consumer_options import LEASE_NUMBER_MAX, Mode, Start
from toymq_py.errors import REQUEST_ERRORS, ProtocolViolation
from toymq_py.failure import failure_of
from toymq_py.protocol import (
    ClientConnection,
    Command,
    MessagePush,
    OkReply,
    ServerConnection,
    commands,
    encode_command,
    encode_messages,
    encode_ok,
    encode_ok_run,
)
from toymq_py.records import Records
from toymq_py.units import DURATION_MS_MAX

U64 = 2**64 - 1
MAX_PAYLOAD = 100

ids = st.integers(0, U64)
names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,195}", fullmatch=True)
patterns = st.sampled_from(["orders.*", "*", ">", "a.*.b", "a.>", "*.dlq"])
ms = st.integers(0, DURATION_MS_MAX)
positive_ms = st.integers(1, DURATION_MS_MAX)
counts = st.integers(1, 2**31 - 1)
keys = st.one_of(
    st.just(b""),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=512)
    .map(str.encode)
    .filter(lambda key: key != b"-"),
)
bodies = st.binary(max_size=MAX_PAYLOAD)
tokens = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=256)
starts = st.one_of(
    st.sampled_from([Start("earliest"), Start("latest")]),
    ids.map(lambda value: Start("id", value)),
    st.integers(0, 2**63 // 1_000_000).map(lambda value: Start("time", value)),
)
modes: st.SearchStrategy[Mode | None] = st.sampled_from([None, "exclusive", "shared"])
sets_of_settings = st.dictionaries(st.from_regex(r"[a-z_]{1,64}", fullmatch=True), tokens, max_size=3)


@st.composite
def id_ranges(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    edges = sorted(draw(st.sets(st.integers(0, 10**12), min_size=2, max_size=8)))
    return tuple(zip(edges[::2], edges[1::2], strict=False))


def maybe(strategy: st.SearchStrategy[int]) -> st.SearchStrategy[int | None]:
    return st.none() | strategy


@st.composite
def publishes(draw: st.DrawFn) -> commands.Publish:
    pairs = draw(st.lists(st.tuples(keys, bodies), min_size=1, max_size=20))
    run = commands.Publish(draw(names), [key for key, _ in pairs], [body for _, body in pairs])
    if draw(st.booleans()):
        first = draw(ids)
        seqs = draw(st.lists(ids, min_size=len(pairs), max_size=len(pairs)) | st.just([first] * len(pairs)))
        run = replace(run, keys=[draw(keys.filter(bool))] * len(pairs), seqs=seqs)
    delays, ttls = (
        draw(st.none() | st.lists(numbers, min_size=len(pairs), max_size=len(pairs))) for numbers in (ms, positive_ms)
    )
    hdr = draw(st.integers(0, len(pairs[0][1]))) if len(pairs) == 1 else 0
    return replace(run, hdr=hdr, delays_ms=delays, ttls_ms=ttls)


texts = st.none() | st.text() | st.text(st.sampled_from("a \n\x00\x1b%=\u202e\ud800é😀"), max_size=5000)
failures = st.builds(failure_of, texts, texts, texts, texts)
leases = st.none() | st.integers(1, LEASE_NUMBER_MAX)

any_command: st.SearchStrategy[Command] = st.one_of(
    publishes(),
    st.sampled_from(
        [
            commands.Pause(), commands.Resume(), commands.Stats(), commands.Stats(partial=True), commands.Cluster(),
            commands.Ping(), commands.Quit(), commands.Topics(),
        ]
    ),
    st.builds(commands.Hello, st.integers(0, 2**31 - 1), st.none() | tokens, st.none() | tokens),
    st.builds(
        commands.Subscribe, names | patterns, names, maybe(counts), maybe(positive_ms), st.none() | starts, modes, leases
    ),
    st.builds(commands.Unsubscribe, names | patterns, names, st.booleans()),
    st.builds(commands.Pull, names | patterns, names, counts, ms, maybe(positive_ms), leases),
    st.builds(commands.Ack, names, names, id_ranges(), st.booleans()),
    st.builds(commands.Nack, names, names, id_ranges(), maybe(ms), st.booleans(), st.none() | failures, lease=leases),
    st.builds(commands.Nack, names, names, id_ranges(), uncounted=st.just(True), lease=leases),
    st.builds(commands.Touch, names, names, id_ranges(), maybe(positive_ms), leases),
    st.builds(commands.Fetch, names, ids, counts, st.integers(1, 1 << 40), ms),
    st.builds(commands.Offsets, names, maybe(st.integers(0, 2**43))),
    st.builds(commands.Create, names, sets_of_settings),
    st.builds(commands.Config, names, sets_of_settings),
    st.builds(commands.Delete, names),
    st.builds(commands.Purge, names),
    st.builds(commands.Seek, names, names, starts),
    st.builds(commands.Forget, names, names),
    st.builds(commands.Redrive, names, st.none() | id_ranges(), maybe(counts)),
    st.builds(commands.Topics, names | patterns),
    st.builds(commands.Describe, names),
)  # fmt: skip

frames_of_alike = st.builds(
    lambda topic, width, size, count, broken: b"".join(
        b"PUB %b %b %d\n%b\n" % (topic, b"k%0*d" % (width, n % 10**width), size, b"\n" * (size - (n == broken)))
        for n in range(count)
    ),
    st.sampled_from([b"a", b"b", b"../x"]),
    st.integers(1, 4),
    st.integers(1, MAX_PAYLOAD + 1),
    st.integers(1, 150),
    st.integers(-300, 150),
)
"""PUBs of one shape, as a fast producer sends them; one of them perhaps a byte short."""

frames_of_a_producer = st.builds(
    lambda topic, width, size, count, broken, number: b"".join(
        b"PUB %b p %d seq=%b\n%b\n"
        % (topic, size, number if n == -broken else b"%0*d" % (width, n % 10**width), b"\n" * (size - (n == broken)))
        for n in range(count)
    ),
    st.sampled_from([b"a", b"b", b"../x"]),
    st.integers(1, 20),
    st.integers(1, MAX_PAYLOAD + 1),
    st.integers(1, 150),
    st.integers(-150, 150),
    st.sampled_from([b"x", b"", b"-1", b"18446744073709551615", b"18446744073709551616", b"1 hdr=1", b"1\r"]),
)
"""The same with sequences; one of them a byte short, or with another one."""

lines_of_acks = st.lists(st.integers(0, 10**19), max_size=120).map(lambda ids: b"".join(b"ACK a c %d\n" % i for i in ids))

lines_of_a_run = st.builds(
    lambda head, tails, ids: b"".join(
        b"%b%b%b\n" % (head, text, tails[row * len(tails) // len(ids)]) for row, text in enumerate(ids)
    ),
    st.sampled_from([b"NACK a c ", b"TOUCH a c ", b"ACK a c "]),
    st.lists(st.sampled_from([b"", b" lease=7", b" lease=8", b" lease=7\r", b"\r", b" sync=1", b" delay=0 lease=7", b" x=1"])
             | st.integers(4050, 4090).map(lambda size: b" reason=" + b"x" * (size - 8)), min_size=1, max_size=3),
    st.lists(st.integers(0, 10**19).map(b"%d".__mod__) | st.sampled_from([b"", b"x", b"007", b"1,2", b"3-5", b"5-5", b"1 "]),
             min_size=1, max_size=60),
)  # fmt: skip
"""Lines that differ in their ids, of one, two or three kinds; some are longer than a line may be, by an id or more."""

scraps = st.one_of(
    frames_of_alike,
    lines_of_acks,
    lines_of_a_run,
    frames_of_a_producer,
    any_command.map(lambda command: encode_command(command)),
    st.binary(max_size=12),
    st.sampled_from(
        [
            b"PUB a - 1\nab\n", b"PUB a - 100000000000\n", b"PUB a - x\n", b"PUB\n", b"\n", b"\r\n", b"PING\r\n",
            b"PUB .a - 12\nDELETE orders\n", b"PUB a - 150\n" + b"PUB a - 0\n\n" * 13 + b"1234567\n", b"X" * 4097,
            b"ACK a c 5-3\nACK a c 1\nACK .a c 1\nACK a c 1,2\n", b"PUB a - 3 hdr=4\nabc\n", b"PUB a k k 1\n\n",
        ]
    ),
)  # fmt: skip
streams = st.lists(scraps, max_size=12).map(b"".join)


@given(data=streams, cuts=st.lists(st.integers(0, 4000), max_size=12), max_commands=st.sampled_from([1, 2, 7, 512]))
@example(data=b"PUB a - 1\nx\n" * 20, cuts=[100, 101], max_commands=7)
@example(data=b"PUB a - 101\n" + b"x" * 101 + b"\nPING\n", cuts=list(range(1, 119)), max_commands=1)
@settings(max_examples=examples(150), deadline=None)
def test_any_split_gives_the_same_events(data: bytes, cuts: list[int], max_commands: int) -> None:
    whole = events_of(data, max_payload=MAX_PAYLOAD)
    inside = [cut for cut in cuts if cut < len(data)]
    assert events_of(data, inside, max_commands=max_commands, max_payload=MAX_PAYLOAD) == whole
    assert events_of(data, range(len(data)), max_payload=MAX_PAYLOAD) == whole, "byte by byte"


@given(data=st.lists(st.binary(max_size=300) | scraps, max_size=6).map(b"".join))
@settings(max_examples=examples(150), deadline=None)
def test_any_bytes_give_an_event_or_a_documented_error(data: bytes) -> None:
    events, failed, _ = events_of(data, max_payload=MAX_PAYLOAD)
    refusals = [event for event in events if isinstance(event, tuple) and len(event) == 3]
    for code, text, _ in refusals:
        assert code in REQUEST_ERRORS
        assert text
        assert text.isprintable()
    fatal = [event for event in refusals if event[2]]
    assert len(fatal) <= 1, "the connection ends with the first"
    assert failed or not fatal


@given(st.lists(any_command, max_size=8))
@settings(max_examples=examples(150), deadline=None)
def test_what_a_client_says_is_what_the_broker_hears(said: list[Command]) -> None:
    connection = ServerConnection(MAX_PAYLOAD)
    connection.receive_data(b"".join(map(encode_command, said)))
    heard: list[Command] = []
    while found := connection.next_commands():
        heard += found
    assert flat(heard) == flat(said)
    assert connection.buffered_bytes == 0


@given(
    topic=names,
    rows=st.lists(st.tuples(ids, ids, keys, bodies, st.binary(max_size=20)), min_size=1, max_size=8),
    with_headers=st.booleans(),
    attempt=st.integers(1, 2**31),
    step=st.integers(1, 200),
)
@settings(max_examples=examples(200), deadline=None)
def test_what_the_broker_says_is_what_a_client_hears(
    topic: str, rows: list[tuple[int, int, bytes, bytes, bytes]], with_headers: bool, attempt: int, step: int
) -> None:
    columns = [list(column) for column in zip(*rows, strict=True)]
    headers = columns[4] if with_headers else None
    records = Records(columns[0], columns[1], columns[2], columns[3], headers)  # type: ignore[arg-type]
    data = b"".join(encode_messages(topic, records, attempt).pieces) + encode_ok_run(rows[0][0], 3)
    connection = ClientConnection()
    heard: list[object] = []
    for at in range(0, len(data), step):
        connection.receive_data(data[at : at + step])
        heard += connection.next_replies()
    assert heard == [
        MessagePush(topic, msg_id, attempt, ts_ns, key, block if with_headers else b"", payload)
        for msg_id, ts_ns, key, payload, block in rows
    ] + [OkReply(rows[0][0] + n) for n in range(3)]


@given(first_id=st.integers(0, 10**7) | ids, count=st.integers(1, 3000))
@settings(max_examples=examples(100), deadline=None)
def test_a_run_of_oks_is_one_ok_after_the_other(first_id: int, count: int) -> None:
    assert encode_ok_run(first_id, count) == b"".join(encode_ok(first_id + n) for n in range(count))


@given(
    first_id=st.integers(0, 12_000) | st.sampled_from([99_990, 999_995, 10**12 - 3]),
    gaps=st.lists(st.sampled_from([1, 1, 1, 1, 1, 2, 999, 1000]), min_size=1, max_size=40),
    key_len=st.integers(0, 3),
    payload_len=st.integers(0, 3),
    times=st.lists(st.sampled_from([9, 10, 11, 1_700_000_000_000_000_000]), min_size=1, max_size=3),
    odd=st.booleans(),
    attempt=st.integers(1, 12),
    data=st.data(),
)
@settings(max_examples=examples(150), deadline=None)
def test_frames_that_are_encoded_together_are_those_that_are_encoded_one_by_one(
    first_id: int, gaps: list[int], key_len: int, payload_len: int, times: list[int], odd: bool, attempt: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    msg_ids = [first_id + sum(gaps[:row]) for row in range(len(gaps))]
    run_keys = [b"k" * key_len] * len(gaps)
    payloads = [b"%03d" % row for row in range(len(gaps))]
    payloads = [payload[:payload_len] for payload in payloads]
    if odd:
        payloads[-1] += b"!"
    stamps = sorted((times * len(gaps))[: len(gaps)])
    records = Records(msg_ids, stamps, run_keys, payloads)
    one_by_one = [
        b"MSG t %d %d %d %b %d\n%b\n" % (msg_id, attempt, ts_ns, key or b"-", len(payload), payload)
        for msg_id, ts_ns, key, payload in zip(msg_ids, stamps, run_keys, payloads, strict=True)
    ]
    frames = encode_messages("t", records, attempt)
    assert b"".join(frames.pieces) == b"".join(one_by_one)
    assert list(frames.sizes()) == list(map(len, one_by_one))
    start, stop = sorted((data.draw(st.integers(0, len(gaps))), data.draw(st.integers(0, len(gaps)))))
    part = frames.part(start, stop)
    assert b"".join(part.pieces) == b"".join(one_by_one[start:stop])
    assert list(part.sizes()) == list(map(len, one_by_one[start:stop]))


@given(data=st.binary(max_size=300), step=st.integers(1, 50))
@settings(max_examples=examples(200), deadline=None)
def test_a_client_takes_any_bytes_or_says_that_they_are_no_protocol(data: bytes, step: int) -> None:
    connection = ClientConnection()
    with suppress(ProtocolViolation):  # any other exception is a bug
        for at in range(0, len(data), step):
            connection.receive_data(data[at : at + step])
            connection.next_replies()
