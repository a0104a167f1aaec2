"""Parse pipelined PUBs, ACKs, NACKs and TOUCHes, a batch of them at a time: the hot path of the broker's end.

Contract: protocol.md, "Framing". Takes only what is complete and legal; a bad or unusual command is left in the buffer for
``ServerConnection``, which says what is wrong with it.
"""

from functools import lru_cache

from toymq_py.errors import BadName
from toymq_py.fixed_rows import LAYOUTS_CACHED_MAX, RowLayout, columns_are
from toymq_py.protocol.buffer import Buffer
from toymq_py.protocol.commands import Ack, Command, Nack, Publish, SettlementRun, Touch
from toymq_py.protocol.frames import LENGTH_DIGITS_MAX, LINE_BYTES_MAX, NEWLINE, NO_KEY, PRINTABLE, is_key
from toymq_py.protocol.header_lines import consumer_name, topic_name
from toymq_py.records import KEY_BYTES_MAX

NAMES_CACHED_MAX = 256
"""Names that a connection remembers as legal: some 100 KiB. With 4,096 each of many connections could hold 3 MiB."""
IDS_DIGITS_FAST = SEQUENCE_DIGITS_FAST = 18
"""Message ids and sequences of so many digits are below 2^64 without looking."""
MS_DIGITS_FAST = 11
"""Delays of so many digits are below ten years without looking."""
TIMES = frozenset((b"delay", b"ttl"))


class BatchParser:
    """Takes batches of similar commands out of a connection's buffer; each ``parse_…`` moves the buffer's ``pos`` behind
    them."""

    __slots__ = ("_buffer", "_names", "_topics", "max_payload")

    def __init__(self, buffer: Buffer, max_payload: int) -> None:
        self._buffer = buffer
        self.max_payload = max_payload
        """The longest body, in bytes; a longer one is left to the caller, which refuses it."""
        self._topics: dict[bytes, str] = {}
        self._names: dict[tuple[bytes, bytes], tuple[str, str]] = {}

    def parse_publishes(self, commands: list[Command], max_count: int) -> int:
        """Parse PUBs without options whose bodies have arrived. Stops at anything else. Returns: how many PUBs."""
        buffer = self._buffer
        data, pos = buffer.data, buffer.pos
        end = len(data)
        find = data.find
        left = max_count
        while left > 0:
            line_end = find(b"\n", pos, pos + LINE_BYTES_MAX)
            if line_end < 0:
                break
            tokens = data[pos:line_end].split(b" ")
            if len(tokens) != 4 or tokens[0] != b"PUB":
                break
            name = tokens[1]
            topic = self._topics.get(name) or self._learn_topic(name)
            if topic is None:
                break
            taken = self._parse_alike(commands, pos, line_end, tokens, topic, left)
            if taken:
                left -= taken
                pos = buffer.pos
                if pos == end:
                    break
                continue
            keys: list[bytes] = []
            bodies: list[bytes] = []
            starts: list[int] = []
            add_key, add_body, add_start = keys.append, bodies.append, starts.append
            known_length: bytes | None = None  # b"" is a missing length
            size = 0
            while left > 0:
                if len(tokens) != 4 or tokens[0] != b"PUB" or tokens[1] != name:
                    break
                length = tokens[3]
                if length != known_length:
                    if not length.isdigit() or len(length) > LENGTH_DIGITS_MAX or int(length) > self.max_payload:
                        break
                    known_length, size = length, int(length)
                body_at = line_end + 1
                stop = body_at + size
                if stop >= end or data[stop] != NEWLINE:
                    break
                add_start(pos)
                add_key(tokens[2])
                add_body(data[body_at:stop])
                left -= 1
                stride = stop + 1 - pos
                pos = stop + 1
                if left and data[stop + stride : pos + stride + 4] == b"\nPUB ":
                    head, tail = b"PUB %b " % name, b" %b\n" % length
                    alike_keys, alike_bodies = self._take_alike(pos, head, len(tokens[2]), tail, size, left)
                    taken = len(alike_keys)
                    keys += alike_keys
                    bodies += alike_bodies
                    starts.extend(range(pos, pos + taken * stride, stride))
                    left -= taken
                    pos += taken * stride
                line_end = find(b"\n", pos, pos + LINE_BYTES_MAX)
                if line_end < 0:
                    break
                tokens = data[pos:line_end].split(b" ")
            if not keys:
                break
            good = self._check_keys(keys)
            bad = good < len(keys)
            if bad:  # the batch ends before the bad key, which the caller refuses
                pos = starts[good]
                left += len(keys) - good
                del keys[good:], bodies[good:]
            if keys:
                if NO_KEY in keys:
                    keys = [b"" if key == NO_KEY else key for key in keys]
                commands.append(Publish(topic, keys, bodies))
            if bad:
                break
        buffer.pos = pos
        return max_count - left

    def _parse_alike(
        self, commands: list[Command], pos: int, line_end: int, tokens: list[bytes], topic: str, left: int
    ) -> int:
        """Parse PUBs whose headers and bodies have equal lengths, or the only PUB that has arrived: nearly every client sends
        such PUBs.

        Returns: how many; with 0 the buffer's ``pos`` did not move.
        """
        buffer = self._buffer
        data = buffer.data
        end = len(data)
        length = tokens[3]
        if not length.isdigit() or len(length) > LENGTH_DIGITS_MAX:
            return 0
        size = int(length)
        stop = line_end + 2 + size
        if size > self.max_payload or stop > end or data[stop - 1] != NEWLINE:
            return 0
        key = tokens[2]
        if stop == end:
            if key == NO_KEY:
                key = b""
            elif not is_key(key):
                return 0
            commands.append(Publish(topic, [key], [data[line_end + 1 : end - 1]], shape=(len(key), size)))
            buffer.pos = end
            return 1
        stride = stop - pos
        if data[stop + stride - 1 : stop + stride] != b"\n" or data[stop : stop + 4] != b"PUB ":
            return 0
        head, tail = b"PUB %b " % tokens[1], b" %b\n" % length
        keys, bodies = self._take_alike(pos, head, len(key), tail, size, left)
        count = len(keys)
        if count < 2:
            return 0
        shape = len(key), size
        if key == NO_KEY and keys.count(NO_KEY) == count:
            keys, shape = [b""] * count, (0, size)
        elif not 0 < len(key) <= KEY_BYTES_MAX or NO_KEY in keys or b"".join(keys).translate(None, PRINTABLE):
            return 0
        commands.append(Publish(topic, keys, bodies, shape=shape))
        buffer.pos = pos + count * stride
        return count

    def parse_sequenced(self, commands: list[Command], max_count: int) -> int:
        """Parse PUBs of one producer whose only option is ``seq``. Stops at anything else. Returns: how many."""
        buffer = self._buffer
        data, pos = buffer.data, buffer.pos
        end = len(data)
        left = max_count
        while left > 0 and data[pos : pos + 4] == b"PUB ":
            line_end = data.find(b"\n", pos, pos + LINE_BYTES_MAX)
            tokens = data[pos:line_end].split(b" ") if line_end >= 0 else []
            if len(tokens) != 5 or not tokens[4].startswith(b"seq=") or not is_key(tokens[2]):
                break
            topic = self._topics.get(tokens[1]) or self._learn_topic(tokens[1])
            if topic is None:
                break
            opening = b"PUB %b %b " % (tokens[1], tokens[2])
            bodies: list[bytes] = []
            seqs: list[int] = []
            while left > 0 and line_end >= 0 and data.startswith(opening, pos):
                length, _, digits = data[pos + len(opening) : line_end].partition(b" seq=")
                if not (length.isdigit() and len(length) <= LENGTH_DIGITS_MAX and int(length) <= self.max_payload):
                    break
                if not digits.isdigit() or len(digits) > SEQUENCE_DIGITS_FAST:
                    break
                stop = line_end + 1 + int(length)
                if stop >= end or data[stop] != NEWLINE:
                    break
                bodies.append(data[line_end + 1 : stop])
                seqs.append(int(digits))
                left -= 1
                stride = stop + 1 - pos
                pos = stop + 1
                if left and data[stop + stride : pos + stride + 4] == b"\nPUB ":
                    head = b"%b%b seq=" % (opening, length)
                    numbers, alike_bodies = self._take_alike(pos, head, len(digits), b"\n", int(length), left)
                    taken = len(numbers)
                    if taken and not b"".join(numbers).isdigit():  # ends before the bad one
                        taken = next(row for row, number in enumerate(numbers) if not number.isdigit())
                    seqs.extend(map(int, numbers[:taken]))
                    bodies += alike_bodies[:taken]
                    left -= taken
                    pos += taken * stride
                line_end = data.find(b"\n", pos, pos + LINE_BYTES_MAX)
            if not bodies:
                break
            commands.append(Publish(topic, [tokens[2]] * len(bodies), bodies, seqs=seqs))
        buffer.pos = pos
        return max_count - left

    def parse_timed(self, commands: list[Command], max_count: int) -> int:
        """Parse PUBs to one topic that all have the options ``delay``, ``ttl`` or both, in one order. Stops at anything else.

        Returns: how many.
        """
        buffer = self._buffer
        data, pos = buffer.data, buffer.pos
        end = len(data)
        find = data.find
        keys: list[bytes] = []
        bodies: list[bytes] = []
        columns: list[list[int]] = []
        name = b""
        named: list[bytes] = []
        while len(keys) < max_count and (line_end := find(b"\n", pos, pos + LINE_BYTES_MAX)) >= 0:
            tokens = data[pos:line_end].split(b" ")
            if not 5 <= len(tokens) <= 6 or tokens[0] != b"PUB":
                break
            if not tokens[3].isdigit() or len(tokens[3]) > LENGTH_DIGITS_MAX:
                break
            options = [token.partition(b"=") for token in tokens[4:]]
            if not keys:
                name, named = tokens[1], [option[0] for option in options]
                if not TIMES.issuperset(named) or len(set(named)) < len(named):
                    break
                columns = [[] for _ in named]
            elif tokens[1] != name or len(options) != len(named):
                break
            stop = line_end + 1 + int(tokens[3])
            if stop >= end or data[stop] != NEWLINE or int(tokens[3]) > self.max_payload:
                break
            if tokens[2] != NO_KEY and not is_key(tokens[2]):
                break
            for (known, _, digits), expected in zip(options, named, strict=True):
                if known != expected or not digits.isdigit() or len(digits) > MS_DIGITS_FAST or digits[:1] == b"0":
                    stop = 0
            if not stop:
                break
            for column, option in zip(columns, options, strict=True):
                column.append(int(option[2]))
            keys.append(b"" if tokens[2] == NO_KEY else tokens[2])
            bodies.append(data[line_end + 1 : stop])
            pos = stop + 1
        if not keys:
            return 0
        topic = self._topics.get(name) or self._learn_topic(name)
        if topic is None:
            return 0
        found = dict(zip(named, columns, strict=True))
        commands.append(Publish(topic, keys, bodies, delays_ms=found.get(b"delay"), ttls_ms=found.get(b"ttl")))
        buffer.pos = pos
        return len(keys)

    def _take_alike(
        self, pos: int, head: bytes, width: int, tail: bytes, size: int, left: int
    ) -> tuple[list[bytes], list[bytes]]:
        """Cut PUBs of equal lengths with one ``struct`` call, in a third of the time: a producer with fixed-width keys or
        sequences sends nothing else.

        A space or newline inside a key or sequence shows when the caller checks the values.

        Returns: the ``width`` bytes between ``head`` and ``tail`` of each, unchecked; and the bodies.
        """
        layout, data = _layout(len(head), width, len(tail), size), self._buffer.data
        stride = layout.size
        room = min(left, (len(data) - pos) // stride)
        taken, step = 0, 16
        while taken < room:
            step = min(step, room - taken)
            at = pos + taken * stride
            if not (
                columns_are(data, at, stride, step, head)
                and columns_are(data, at + len(head) + width, stride, step, tail)
                and columns_are(data, at + stride - 1, stride, step, b"\n")
            ):
                break
            taken += step
            step *= 8  # comparisons in vain stay in proportion to successful ones
        values = layout.unpack(data, pos, taken)
        return values[::2], values[1::2]

    def parse_acks(self, commands: list[Command], max_count: int) -> int:
        """Parse ACKs of one id or one range, without options; consecutive ACKs of one id each become one ``SettlementRun``.
        Stops at anything else. Returns: how many."""
        buffer = self._buffer
        data, pos = buffer.data, buffer.pos
        find = data.find
        left = max_count
        while left > 0 and data[pos : pos + 4] == b"ACK ":
            line_end = find(b"\n", pos, pos + LINE_BYTES_MAX)
            if line_end < 0:
                break
            tokens = data[pos + 4 : line_end].split(b" ")
            if len(tokens) != 3:
                break
            first, dash, last = tokens[2].partition(b"-")
            if not first.isdigit() or len(first) > IDS_DIGITS_FAST or len(last) > IDS_DIGITS_FAST:
                break
            low = high = int(first)
            if dash:
                if not last.isdigit():
                    break
                high = int(last)
                if high < low:
                    break
            names = self._names.get((tokens[0], tokens[1])) or self._learn_names(tokens[0], tokens[1])
            if names is None:
                break
            left -= 1
            pos = line_end + 1
            ids = [low]
            if left and not dash and data.startswith(b"ACK ", pos):
                pos = self._take_ids(pos, b"ACK %b %b " % (tokens[0], tokens[1]), b"\n", left, ids)
            ack = Ack(names[0], names[1], ((low, high),))
            commands.append(ack if len(ids) == 1 else SettlementRun(ack, ids))
            left -= len(ids) - 1
        buffer.pos = pos
        return max_count - left

    def parse_alike(self, commands: list[Command], began: int, max_count: int) -> int:
        """Parse the lines that differ only in their id from the last command's line, which began at ``began``; together with
        that command they become one ``SettlementRun``. Returns: how many lines."""
        first = commands[-1]
        if not isinstance(first, Ack | Nack | Touch):
            return 0
        data, pos = self._buffer.data, self._buffer.pos
        line = data[began : pos - 1]
        verb, topic, consumer, text, *_ = line.split(b" ", 4)
        head, digits = b"%b %b %b " % (verb, topic, consumer), text.removesuffix(b"\r")
        if not (data.startswith(head, pos) and digits.isdigit() and len(digits) <= IDS_DIGITS_FAST):
            return 0
        tail = line[len(head) + len(digits) :] + b"\n"
        if len(head) + IDS_DIGITS_FAST + len(tail) > LINE_BYTES_MAX:
            return 0
        stop = data.find(b"\n", pos, pos + LINE_BYTES_MAX) + 1
        if not data.startswith(tail, stop - len(tail)):  # it has other options, or is not complete
            return 0
        ids = [int(digits)]
        self._buffer.pos = self._take_ids(pos, head, tail, max_count, ids)
        if len(ids) > 1:
            commands[-1] = SettlementRun(first, ids)
        return len(ids) - 1

    def _take_ids(self, pos: int, head: bytes, tail: bytes, max_count: int, ids: list[int]) -> int:
        """Cut complete lines that consist of ``head``, one id and ``tail``, many at a time, and append their ids to ``ids``.
        Returns: the position behind them."""
        data = self._buffer.data
        width, opening = len(head), tail + head
        left, step, more = max_count, 16, True
        while more and left and data.startswith(head, pos):
            count = min(step, left)
            stop = data.rfind(b"\n", pos, pos + count * (width + IDS_DIGITS_FAST + len(tail))) + 1
            if not stop:
                break
            found = data[pos + width : stop].split(opening, count)
            if len(found) > count:
                del found[count:]
            else:
                found[-1], ended, other = found[-1].partition(tail)  # behind the last id there may be other commands
                more = bool(ended) and not other and len(found) == count
                if not ended:  # it has other options
                    found[-1] = b""
            if not b"".join(found).isdigit() or not 0 < min(map(len, found)) <= max(map(len, found)) <= IDS_DIGITS_FAST:
                more = False
                bad = next(row for row, text in enumerate(found) if not text.isdigit() or len(text) > IDS_DIGITS_FAST)
                del found[bad:]
            ids.extend(map(int, found))
            left -= len(found)
            pos += sum(map(len, found)) + len(found) * (width + len(tail))
            step *= 4  # a short run before other commands does not pay for a long one
        return pos

    @staticmethod
    def _check_keys(keys: list[bytes]) -> int:
        """How many keys from the first on are legal; ``-`` is no key, and legal."""
        if not b"".join(keys).translate(None, PRINTABLE) and all(keys) and max(map(len, keys)) <= 512:
            return len(keys)
        return next(i for i, key in enumerate(keys) if key != NO_KEY and not is_key(key))

    def _learn_names(self, topic: bytes, consumer: bytes) -> tuple[str, str] | None:
        try:
            names = topic_name(topic.decode("latin-1")), consumer_name(consumer.decode("latin-1"))
        except BadName:
            return None
        if len(self._names) >= NAMES_CACHED_MAX:
            self._names.clear()
        self._names[topic, consumer] = names
        return names

    def _learn_topic(self, name: bytes) -> str | None:
        try:
            topic = topic_name(name.decode("latin-1"))
        except BadName:
            return None
        if len(self._topics) >= NAMES_CACHED_MAX:
            self._topics.clear()
        self._topics[name] = topic
        return topic


@lru_cache(LAYOUTS_CACHED_MAX)
def _layout(head: int, value: int, tail: int, body: int) -> RowLayout:
    """The fixed-width layout of a PUB whose parts have these lengths in bytes; its fields are ``value`` and ``body``."""
    return RowLayout(f"{head}x{value}s{tail}x{body}sx")
