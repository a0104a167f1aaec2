"""Where fuzzing begins: inputs with meaning, by target and name. ``found-...`` are those that broke something once."""

from tests.fuzz.targets import FIRST, KNOB_PREALLOCATED, KNOB_REPAIR, KNOB_SECOND, SECOND
from tests.support.frames import encode_attributes, encode_frame

STREAMS = {
    "publishes": b"".join(b"PUB orders k%02d 5\nhello\n" % n for n in range(20)),
    "publish-options": b"PUB t k 9 hdr=5 delay=1 ttl=2 seq=3\nA: b\nbody\nPUB t - 0\n\n",
    "consume": b"HELLO 1 name=x\nSUB t c window=7 visibility=9 start=@5 mode=shared\nACK t c 1-3,5\nACK t c 7\n",
    "give-back": b"NACK t c 1 delay=5 dead=1 reason=x\nTOUCH t c 1 visibility=5\nPULL t c 5 wait=6\nHELD t c\nUNSUB t c\n",
    "failure": b"NACK t c 1 reason=no%20such%20file error_type=OSError error=%F0%9F%98%80%zz%00 traceback=a%0A%20b\n",
    "look": b"FETCH t 0 9 max_bytes=5 wait=6\r\nOFFSETS t at=5\nTOPICS a.*\nDESCRIBE t\nSTATS\nPING\n",
    "arrange": b"CREATE t visibility=5\nCONFIG t\nSEEK t c latest\nFORGET t c\nREDRIVE t.dlq ids=1 max=2\nPURGE t\nQUIT\n",
    "refused": b"PUB ../x - 12\nDELETE orders\nPUB t k k 1\n\nFROB\nPUB t - 101\n" + b"x" * 101 + b"\n\xff\n  \nSUB t c c=c\n",
    "endless": b"PUB t - 99999999999999999999999\nZ",
    "long-line": b"ACK t c " + b",".join(b"%d" % n for n in range(1, 2000, 2)),
}
REPLIES = {
    "one-of-each": b"OK 5\nDUP 7\nPONG\nERR BAD_NAME some text\nCLOSED t c SEEK\nOFFSETS t 1 2\n",
    "hello": b"HELLO 1 server=toymq/1 max_payload=5\n",
    "hello-of-a-newer-one": b"HELLO 1 server=toymq/2 max_payload=5 nack_error=1 more=x\n",
    "messages": b"MSG t 0 1 1781767800000000000 - 5\nhello\nMSG t 1 1 1781767800000000000 k 9 hdr=5\nA: b\nbody\n",
    "bodies": b"JSON 2\n{}\nBATCH t 0 1 0\n\nJSON 300000000\n",
    "not-ours": b"HTTP/1.1 400 Bad Request\r\n\r\n",
}


def _logs() -> dict[str, bytes]:
    attributes = encode_attributes(deliver_at_ns=5, expires_at_ns=6, headers=b"A: b\n", sequence=7)
    inner = b"".join(encode_frame(n, 1, b"", b"inner") for n in range(2, 6))
    carrier = encode_frame(0, 1, b"k", inner) + encode_frame(1, 1, b"", b"behind")
    return {
        "valid": b"\0\0\0" + FIRST,
        "two-segments": bytes([KNOB_SECOND, 128, 2]) + FIRST,
        "torn": b"\0\0\0" + FIRST[:-7],
        "preallocated": bytes([KNOB_PREALLOCATED, 0, 0]) + FIRST,
        "zeroed": b"\0\0\0" + FIRST[:40] + bytes(40) + FIRST[80:],
        "repaired": bytes([KNOB_REPAIR, 0, 0]) + encode_frame(0, 5, b"key", b"payload", attributes) * 2,
        "carrier": b"\0\0\0" + bytes(30) + carrier[30:],
    }


CONSUMER = b'{"since_ns": 1, "start": 0, "has_acked": true, "last_acked": 1, "acked_above": [[3, 4]], "attempts": [[2, 2, 1]]}'
STATE = b'{"version": 1, "first_id": 0, "next_id": 10, "consumers": {"c": %b}, "removed": [[0, 1]]}' % CONSUMER
INDEX = b"[[0], [0], [0], [1]]"
SIDECAR = (
    b'{"size": %d, "first_id": 0, "next_id": 6, "keyed": 2, "newest_ts_ns": 1, "newest_deliver_at_ns": 0, '
    b'"producers": {"p": [1, 2]}, "gaps": [], "index": %b}' % (len(FIRST), INDEX)
)
DEEP = b"[" * 15_000
"""Nested deeper than the parser of JSON goes, for which it has an error of its own."""


def _files() -> dict[str, bytes]:
    return {
        "offsets": b"\0" + STATE,
        "offsets-previous": b"\1" + STATE,
        "sidecar": b"\2" + SIDECAR,
        "settings": b'\3{"visibility": 5000, "dedupe_keys": 0}',
        "sealed": b"\4" + FIRST[:-9],
        "active": b"\5" + SECOND[9:],
        "found-deep-offsets-end-the-start": b"\0" + DEEP,
        "found-a-deep-sidecar-ends-the-start": b"\2" + DEEP,
        "found-deep-settings-end-the-start": b"\3" + DEEP,
        "found-an-infinite-removed-range-ends-the-start": b"\0" + STATE.replace(b"[[0, 1]]", b"[[1e999, 2]]"),
        "found-an-infinite-ack-ends-verify": b"\0" + STATE.replace(b'"last_acked": 1', b'"last_acked": 1e999'),
        "found-an-infinite-count-in-a-sidecar-ends-the-start": b"\2" + SIDECAR.replace(b'"keyed": 2', b'"keyed": 1e999'),
        "an-index-with-a-time-above-2^64": b"\2" + SIDECAR.replace(INDEX, b"[[0], [0], [0], [18446744073709551616]]"),
        "found-a-hole-without-bytes-is-walked-for-ever": b"\2" + SIDECAR.replace(b"[],", b"[[0, 0, 0, 0]],", 1),
        "found-an-index-of-unequal-columns-ends-the-start": b"\2" + SIDECAR.replace(INDEX, b"[[0, 1], [0], [], [1]]"),
        "found-an-index-before-the-file-fails-its-reads": b"\2" + SIDECAR.replace(INDEX, b"[[0], [-7], [0], [1]]"),
    }


SEEDS: dict[str, dict[str, bytes]] = {
    "parser": {name: bytes([17, 14]) + stream for name, stream in STREAMS.items()},
    "client": {name: bytes([17]) + stream for name, stream in REPLIES.items()},
    "recovery": _logs(),
    "files": _files(),
}
