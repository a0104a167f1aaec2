"""Finds the valid frames behind damage, in linear time whatever the bytes.

Contract: storage.md, "Recovery", step 6; ADR 0101 tells the rule and its limits. Pure: bytes in, positions out.

A break is a position where the frame of the next id should begin and none does. In order:
  1. If step 4 has found chains at an earlier break of this segment, go on with these: all data was in sight then.
  2. If a whole frame of another id stands there, it belongs elsewhere, and its length says nothing about this place. Go to 4.
  3. The header at the break still tells where its record ends (``trusted_end``; that of another record does not): go on
     there. What lies between is payload, however much it looks like frames. Only a frame of one of the next ids that begins
     there, and goes on behind that end with the frames that follow it, shows that bytes were removed (ADR 0223, 0238): go to 4.
     Lengths that agree but for one flipped bit, or for attributes that are lost, tell an end, too (``damaged_header``).
  4. Otherwise collect the chains behind the break: valid frames of consecutive ids, each chain as long as it gets. A chain
     counts if at least one id is missing before it, with room for the missing ones at 30 bytes each (bytes of a log always
     belong to some record), or if it goes on with the expected id behind inserted bytes (``_behind``). What follows the chain
     does not matter: junk, a torn record or a damaged one. A chain counts as a whole, but is split behind a copied frame.
  5. Of chains that contradict each other the better reading counts (``readings``); only there the end of a chain matters.
  6. When no chain has such room, records stand where they were never written (pages changed places): keep the reading with
     the most records, wherever it begins, of chains that end like a log that was broken off. Other records are lost, not torn.
  7. When no chain has ids for which there is room, most of the log may have been removed: do step 6 with chains of any ids
     that are later than the record before the break. A whole frame at the break itself goes with the chain that follows it.

The search of step 4 happens once a segment. The work is bounded by construction: no more than ``WORK_PER_BYTE`` bytes are
checksummed for each byte of the file.
"""

import re
import struct
from array import array
from collections.abc import Callable
from dataclasses import replace

from toymq_py.storage.damaged_header import KEY_LEN_PLAUSIBLE, is_near, likely_ends, payload_end, reaches_beyond
from toymq_py.storage.readings import Chain, Ending, Keys, Passed, best_reading, fits
from toymq_py.storage.record import (
    CRC_RESIDUE,
    FRAME_OVERHEAD,
    HEADER,
    LENGTH_MAX,
    LENGTH_MIN,
    TAG_LENGTH,
    U32,
    Stop,
    claimed_extent,
    crc32,
    possible_ends,
    scan,
)
from toymq_py.storage.shifted_chains import AT_BREAK, SEVERAL, joined, shifted

WORK_AT_ONCE, WORK_PER_BYTE, WORK_DEFERRED = 2, 16, 4
"""Budgets of bytes to checksum, for each byte of the data: at once, in addition as the search passes bytes, and in addition,
twice, for frames that were too expensive in place. Real records need each byte once or twice: more comes only from headers that
overlap."""
IDS_CROSSED_MAX = 8
"""The number of ids behind a damaged record for which a frame is looked for that goes on behind its end."""
IDS_REMOVED_MAX = 1 << 22
"""Most ids that may be missing where bytes were removed from a segment: more than it has."""
WINDOW_BYTES_MIN, WINDOW_BYTES = 512, 1 << 20
"""The smallest and largest window in which valid frames are walked; it grows with the valid bytes."""
SECTOR_BYTES = 512
"""The boundary at which the bytes begin that a medium loses at once."""

_LENGTHS = struct.Struct("<IQ8xHI")
"""length, msg_id, key_len, and payload_len where there is no key."""
_NOT_ZERO = re.compile(rb"[^\0]")


class Salvage:
    """Finds the valid frames behind damage, in the rest of a segment from its first break on."""

    def __init__(
        self, data: bytes, next_id: int | None = None, *, committed_id: int | None = None, origin: int = 0, after_ns: int = 0,
        last_frame: Callable[[], bytes] = bytes,
    ) -> None:  # fmt: skip
        """
        Args:
            data: the rest of the segment, preallocated zeros included.
            next_id: the id that follows the segment's last record, where that is known.
            committed_id: otherwise, an id that the segment seems to have reached.
            origin: where in the file the data begins.
            after_ns: the time of the record before the data.
            last_frame: returns the last frame before the present break.
        """
        self.data = data
        self.written = len(data.rstrip(b"\0"))
        """The position where the zeros begin that end the data."""
        self.reached = 0
        """The id that the log reached, by records that stand in a wrong place (6)."""
        self._next_id = next_id
        self._committed_id = committed_id
        self._origin = origin
        self._after_ns = after_ns
        self._last_frame = last_frame
        self._view = memoryview(data)
        self._spent = 0
        """The number of bytes of which checksums were computed, or are about to be."""
        self._at = 0
        """The position that the search has reached."""
        self._first_ids: dict[int, int] = {}
        """First ids of the chains that were found, by position."""
        self._told = -1
        """The end of the last record whose header tells it."""
        self._chains: list[Chain] | None = None
        self._chain = 0

    def resume(self, pos: int, msg_id: int) -> Chain | None:
        """The next chain of valid frames behind a break; None when no bytes behind it can be trusted."""
        if self._chains is None:
            self._at = pos
            end = None if self._is_foreign(pos, msg_id) else self.trusted_end(pos, msg_id)
            if end is not None:
                self._told = end
                return self._chain_at(end, msg_id + 1) if end < self.written else None
            self._chains = self.find_chains(pos, msg_id - 1)
        while self._chain < len(self._chains) and self._chains[self._chain].start < pos:
            self._chain += 1
        return self._chains[self._chain] if self._chain < len(self._chains) else None

    # -- one frame

    def valid_frame(self, pos: int, msg_id: int | None = None) -> tuple[int, int] | None:
        """The id and size of the valid frame at ``pos``; None without one, or when it has another id than ``msg_id``."""
        claim = claimed_extent(self.data, pos, check_attributes=False)
        if claim is None or pos + claim[1] > len(self.data) or (msg_id is not None and claim[0] != msg_id):
            return None
        known = self._first_ids.get(pos) == claim[0]
        return claim if known or (self._afford(claim[1]) and self._is_valid(pos, pos + claim[1])) else None

    def _is_valid(self, start: int, end: int) -> bool:
        return crc32(self._view[start:end]) == CRC_RESIDUE and claimed_extent(self.data, start) is not None

    def _afford(self, size: int) -> bool:
        """Whether the budget still allows a checksum of ``size`` bytes at this point; if so, they are counted."""
        if self._spent + size > WORK_AT_ONCE * len(self.data) + WORK_PER_BYTE * self._at:
            return False
        self._spent += size
        return True

    def _is_foreign(self, pos: int, msg_id: int) -> bool:
        return self.data[pos + 4 : pos + 12] != msg_id.to_bytes(8, "little") and self.valid_frame(pos) is not None

    def trusted_end(self, pos: int, msg_id: int) -> int | None:
        """End of the damaged record at ``pos``, when its header still tells it.

        All lengths agree; or one of them leads to the frame of the next id, valid or damaged with its id whole, or makes
        the checksum fit; or one leads to where the log ends, exactly; or they agree but for one fault (``_likely_end``).
        The end may lie beyond the data: then the record was torn, if its lengths agree on that: a flipped bit in one of them
        must not hide what is behind it.
        """
        claim = claimed_extent(self.data, pos)
        if claim is not None and claim[0] != msg_id and not self._fits_with_id(pos, claim[1], msg_id):
            # Another record's header says nothing about this place, and one bit may make an id that of another record.
            end = pos + claim[1]
            if self.valid_frame(end, msg_id + 1) is not None or self._is_written_end(end):
                return end
            if not is_near(self.data, pos, msg_id):
                return None
            told = self._is_lost(end) or not self._may_be_here(claim[0], msg_id)
            certain = told and end <= len(self.data) and not self._is_crossed(pos, end, msg_id + 1)
            return end if certain or self._is_head(end, msg_id + 1) else None
        if claim is not None and pos + claim[1] <= len(self.data):
            return None if self._is_crossed(pos, pos + claim[1], msg_id + 1) else pos + claim[1]
        own = self._own_length_end(pos)
        behind_payload = possible_ends(self.data, pos)
        ends = behind_payload if own is None else [*behind_payload, own]
        for end in ends:
            if self.valid_frame(end, msg_id + 1) is not None:
                return end
        for end in ends:
            if self._is_head(end, msg_id + 1):
                return end
        for end in behind_payload:
            if end <= len(self.data) and self._fits_with_length(pos, end):
                return end
        if claim is not None and reaches_beyond(self.data, pos, strict=True):
            return pos + claim[1]
        if self.data[pos + 20 : pos + 26].strip(b"\0") or is_near(self.data, pos, msg_id):  # zeros lead to an end, too
            for end in ends:
                if self._is_written_end(end):
                    return end
        return self._likely_end(pos, msg_id)

    def _likely_end(self, pos: int, msg_id: int) -> int | None:
        """End of a damaged record whose header has its id, and lengths that agree but for one bit or for lost attributes: the
        first of such ends, since no intact record stands before it."""
        ends = likely_ends(self.data, pos) if self.data[pos + 4 : pos + 12] == msg_id.to_bytes(8, "little") else None
        if not ends:
            return None
        self._at = max(self._at, ends[0])  # else the checksums above leave no budget for those of records that contradict
        return None if self._is_crossed(pos, ends[0], msg_id + 1, payload_end(self.data, pos)) else ends[0]

    def _is_crossed(self, pos: int, end: int, msg_id: int, behind_payload: int | None = None) -> bool:
        """Whether frames of this id or a near one, and those that follow, begin before the claimed end of a record and go on
        behind it, or reach it: bytes were removed from that record. Its checksum stands between the frames of its payload
        and its end. No frame begins between those two, ``behind_payload``, if that is known."""
        if self._is_head(end, msg_id) or self._is_written_end(end):
            return False
        for first_id in range(msg_id, msg_id + IDS_CROSSED_MAX):
            wanted = first_id.to_bytes(8, "little")
            at = self.data.find(wanted, pos + 12, end + 12)
            while 0 <= at < end + 4:
                behind, next_id = at - 4, first_id
                while behind < end and (found := self.valid_frame(behind, next_id)) is not None:
                    behind, next_id = behind + found[1], next_id + 1
                if behind > end - 4 or (behind_payload is not None and behind > at - 4 >= behind_payload):
                    return True
                at = self.data.find(wanted, at + 1, end + 12)
        return False

    def _may_be_here(self, found: int, msg_id: int) -> bool:
        """Whether the segment may have a record of the id that was found where ``msg_id`` is due."""
        return -(self._origin // FRAME_OVERHEAD) <= found - msg_id <= len(self.data) // FRAME_OVERHEAD

    def _is_head(self, pos: int, msg_id: int) -> bool:
        """Whether a header with this id and a possible length begins here, whatever its other lengths say."""
        return self.data[pos + 4 : pos + 12] == msg_id.to_bytes(8, "little") and self._own_length_end(pos) is not None

    def _own_length_end(self, pos: int) -> int | None:
        length = int.from_bytes(self.data[pos : pos + 4], "little")
        return pos + 4 + length if LENGTH_MIN <= length <= LENGTH_MAX else None

    def _is_written_end(self, end: int) -> bool:
        """Whether a record that ends here is the log's last: only zeros follow, and only its checksum may end with zeros."""
        return self.written <= end <= min(self.written + 4, len(self.data))

    def _fits_with_length(self, pos: int, end: int) -> bool:
        """Whether only the length field is damaged: with the length that leads to ``end`` the checksum fits. A payload cannot
        fake that, since the checksum covers the header."""
        length = end - pos - 4
        if not LENGTH_MIN <= length <= LENGTH_MAX or not self._afford(length):
            return False
        return bool(crc32(self._view[pos + 4 : end], crc32(length.to_bytes(4, "little"))) == CRC_RESIDUE)

    def _fits_with_id(self, pos: int, size: int, msg_id: int) -> bool:
        """Whether only the id field is damaged: with ``msg_id`` the checksum fits."""
        if pos + size > len(self.data) or not is_near(self.data, pos, msg_id) or not self._afford(size):
            return False
        head = crc32(self._view[pos : pos + 4])
        return bool(crc32(self._view[pos + 12 : pos + size], crc32(msg_id.to_bytes(8, "little"), head)) == CRC_RESIDUE)

    # -- chains

    def find_chains(self, start: int, last_id: int) -> list[Chain]:
        """Find the chains to keep behind a break whose header tells nothing, in order; empty when no bytes can be trusted.

        Args:
            start: position of the break.
            last_id: id of the valid frame before it, -1 for none.
        """
        return self._with_first(start, last_id, self._chains_behind(start, last_id))

    def _with_first(self, start: int, last_id: int, best: list[Chain]) -> list[Chain]:
        """Add the whole frame at the break itself, if it has a later id than expected and leads to the first chain or to the
        end. No payload begins there, so bytes were removed before it."""
        found = self.valid_frame(start)
        if found is None or found[0] <= last_id or (self._next_id is not None and found[0] >= self._next_id):
            return best
        first = Chain(start, start + found[1], found[0], found[0] + 1)
        if best and (best[0].start, best[0].first_id) == (first.end, first.next_id):
            return [replace(best[0], start=start, first_id=first.first_id), *best[1:]]
        return best or ([first] if self.is_broken_off(first) and self._is_later(first) else [])

    def _chains_behind(self, start: int, last_id: int) -> list[Chain]:
        room = (len(self.data) - start) // FRAME_OVERHEAD
        chains = self._collect(start, last_id, room)
        if not chains:
            chains = [chain for chain in self._collect(start, last_id, IDS_REMOVED_MAX) if self._is_later(chain)]
        chains, keys = shifted(self.data, chains, start, self.valid_frame)
        self._first_ids = {chain.start: chain.first_id for chain in chains}
        rows = self._behind(start, last_id + 1, chains, keys)
        behind = [chains[row] for row in rows]
        broken_off: list[Chain] = []
        if len(behind) < len(chains):
            broken_off = [chain for chain in chains if self.is_broken_off(chain)]
            longest = max(broken_off, key=lambda chain: chain.end - chain.start, default=None)
            if longest is not None and longest not in behind:  # what was never moved fits
                self.reached = max(chain.next_id for chain in broken_off)
        if not behind:
            return joined(best_reading(broken_off, self, displaced=True)[0])
        best, ending = best_reading(behind, self, joints=[keys[row] for row in rows])
        if ending is Ending.NOTHING:  # what is not kept may be the log's: no id of it is used again
            known = best[-1].next_id
            self.reached = max(self.reached, *(chain.next_id for chain in behind if chain.first_id <= known), 0)
            self.reached = self.reached if self.reached > known else 0
        return joined(best)

    def _behind(self, start: int, due: int, chains: list[Chain], keys: list[tuple[Keys, Keys]]) -> list[int]:
        """Rows of the chains that may follow a break: with ids missing, and room for them; or with the expected id ``due``,
        behind inserted bytes (ADR 0238). A frame in the expected record's payload looks the same, so that needs more
        evidence."""
        last, highest = self._last_frame(), 0
        rows: list[int] = []
        for row, chain in reversed(list(enumerate(chains))):
            if fits(start, due, chain) or (
                chain.first_id == due
                and (self._next_id is None or chain.next_id <= self._next_id)
                and (
                    AT_BREAK in keys[row][0]
                    or start == self._told
                    or (last and self.data.endswith(last, start, chain.start))
                    or (SEVERAL in keys[row][0] and (chain.next_id <= highest or self.is_broken_off(chain)))
                    or self._leads_on(chain)
                )
            ):
                rows.append(row)
            highest = max(highest, chain.first_id)
        return rows[::-1]

    def _leads_on(self, chain: Chain) -> bool:
        """Whether the header of the damaged record behind a chain leads to another chain."""
        msg_id, end = self.passed(chain)
        return self._first_ids.get(end) == msg_id

    def passed(self, chain: Chain) -> Passed:
        """The id and position from which a later chain may begin; see ``Passed``."""
        pos, msg_id = chain.end, chain.next_id
        end = None if self._is_foreign(pos, msg_id) else self.trusted_end(pos, msg_id)
        return (msg_id, pos) if end is None else (msg_id + 1, end)

    def _is_later(self, chain: Chain) -> bool:
        """Whether a chain was written after the record before the break, by its time: inside a segment times never fall."""
        time_ns: int = HEADER.unpack_from(self.data, chain.start)[2]
        return time_ns >= self._after_ns

    def _collect(self, start: int, last_id: int, ids: int) -> list[Chain]:
        """Collect every chain behind ``start`` that begins with one of the next ``ids`` ids, in order. A frame inside a chain
        is payload."""
        data, view, total = self.data, self._view, len(self.data)
        low = last_id + 1
        high = low + ids
        if self._next_id is not None:
            high = min(high, self._next_id - 1)
        # The upper id bytes are the same for all that may be found: bytes.find finds the places, Python looks only there.
        constant = 8
        while constant and low >> (64 - 8 * constant) != high >> (64 - 8 * constant):
            constant -= 1
        upper = low.to_bytes(8, "little")[8 - constant :]
        before = 12 - constant
        stop = min(self.written, total - FRAME_OVERHEAD + 1)
        find, lengths, payload_length, attribute = data.find, _LENGTHS.unpack_from, U32.unpack_from, TAG_LENGTH.unpack_from
        at_once = WORK_AT_ONCE * total
        spent = self._spent
        chains: list[Chain] = []
        deferred = array("Q")
        at = start + 1
        while True:
            at = find(upper, at + before) - before
            if at < 0 or at >= stop:
                break
            length, msg_id, key_len, payload_len = lengths(data, at)
            if length == 0:  # so is every length before the zeros end
                behind = _NOT_ZERO.search(data, at)
                at = total if behind is None else max(at + 1, behind.start() - 3)
                continue
            end = at + 4 + length
            rest = length - LENGTH_MIN - key_len
            if low <= msg_id <= high and end <= total and rest >= 0 and length <= LENGTH_MAX:
                rest -= payload_length(data, at + 22 + key_len)[0] if key_len else payload_len
                if rest == 0 or (rest >= 5 and attribute(data, end - 4 - rest)[1] <= rest - 5):
                    if spent + length > at_once + WORK_PER_BYTE * at:
                        deferred.append(at)
                    else:
                        spent += length
                        if crc32(view[at:end]) == CRC_RESIDUE and (not rest or claimed_extent(data, at) is not None):
                            self._spent, self._at = spent, at
                            chains.append(self._chain_at(at, msg_id))
                            spent, at = self._spent, chains[-1].end
                            continue
            at += 1
        self._at, self._spent = total, spent
        return self._with_deferred(chains, deferred) if deferred else chains

    def _with_deferred(self, chains: list[Chain], deferred: "array[int]") -> list[Chain]:
        """Check frames whose checksums were too expensive in place, the last ones first: those followed by a valid frame, then
        the others, each time as many as the work for the whole data allows."""
        data, view = self.data, self._view
        first_ids = {chain.start: chain.first_id for chain in chains}
        linked = alone = WORK_DEFERRED * len(data)
        for at in reversed(deferred):
            (length,) = U32.unpack_from(data, at)
            end = at + 4 + length
            follower = first_ids.get(end)
            if follower is not None and linked >= length:
                linked -= length
            elif alone >= length:
                alone -= length
            else:
                continue
            if crc32(view[at:end]) == CRC_RESIDUE and (claim := claimed_extent(data, at)) is not None:
                first_ids[at] = claim[0]
                chains.append(Chain(at, end, claim[0], claim[0] + 1))
        chains.sort(key=lambda chain: chain.start)
        apart: list[Chain] = []
        for chain in chains:
            if not apart or apart[-1].end <= chain.start:
                apart.append(chain)
        return joined(apart)

    def _chain_at(self, start: int, first_id: int) -> Chain:
        """The chain of valid frames that begins here. At most as many bytes are checked in vain as there are valid ones, or a
        few hundred, apart from frames that reach beyond those."""
        pos, msg_id = start, first_id
        while pos < len(self.data):
            window = min(max(WINDOW_BYTES_MIN, pos - start), WINDOW_BYTES)
            used, msg_id, stop = scan(self.data[pos : pos + window], 0, msg_id)
            pos += used
            if stop is Stop.PARTIAL and not used:
                self._at = max(self._at, pos)
                found = self.valid_frame(pos, msg_id)
                if found is None:
                    break
                pos, msg_id = pos + found[1], msg_id + 1
            elif stop is Stop.INVALID or stop is Stop.ZERO:
                break
        return Chain(start, pos, first_id, msg_id)

    # -- ends

    def claimed_until(self, chain: Chain) -> int:
        """The end of the record behind a chain as its header claims; 0 unless it has the next id."""
        claim = claimed_extent(self.data, chain.end, check_attributes=False)
        if claim is not None:
            return chain.end + claim[1] if claim[0] == chain.next_id else 0
        return self._likely_end(chain.end, chain.next_id) or 0

    def is_broken_off(self, chain: Chain) -> bool:
        """Whether the bytes behind a chain look like the place where a log was broken off."""
        pos, msg_id = chain.end, chain.next_id
        return pos >= self.written or self._looks_torn(pos, msg_id) or self._looks_hit(pos, msg_id)

    def ending(self, chain: Chain, passed: Passed) -> Ending:
        """The evidence that the log ended with a chain; see ``Ending``."""
        msg_id, end = passed
        if self._next_id is not None and self._next_id not in (chain.next_id, msg_id):
            return Ending.NOTHING
        if self._next_id is None and self._committed_id is not None and msg_id < self._committed_id:
            return Ending.NOTHING
        if end >= self.written or self._is_torn(chain.end, chain.next_id):
            return Ending.BYTES
        return Ending.NOTHING if self._next_id is None else Ending.ID

    def _is_torn(self, pos: int, msg_id: int) -> bool:
        """Whether the data ends inside the frame of this id, by all that is there of its header."""
        if not self._looks_torn(pos, msg_id):
            return False
        key_len = int.from_bytes(self.data[pos + 20 : pos + 22], "little")
        short = pos + FRAME_OVERHEAD - 4 + key_len > len(self.data)
        return (short and key_len <= KEY_LEN_PLAUSIBLE) or reaches_beyond(self.data, pos, strict=True)  # which needs a header

    def _looks_hit(self, pos: int, msg_id: int) -> bool:
        """Whether a frame of this id seems to have been here and to be damaged. A lost page reads as zeros, a flipped bit
        rarely changes both length and id, and a lost sector begins on its boundary."""
        if pos + FRAME_OVERHEAD > len(self.data):
            return False
        head = self.data[pos : pos + 12]
        if not head.strip(b"\0"):
            return self._is_lost(pos)
        seen = -(self._origin + pos) % SECTOR_BYTES
        if head[4:seen] == msg_id.to_bytes(8, "little")[: max(seen - 4, 0)]:
            return True
        claim = claimed_extent(self.data, pos)
        return claim is not None and pos + claim[1] <= len(self.data)

    def _is_lost(self, pos: int) -> bool:
        """Whether zeros stand here in place of a header. Too few for a record are a payload's, unless they end where a sector
        does."""
        lost = self.data[pos : pos + FRAME_OVERHEAD]
        zeros = len(lost) - len(lost.lstrip(b"\0"))
        return zeros == FRAME_OVERHEAD or (zeros >= 12 and (self._origin + pos + zeros) % SECTOR_BYTES == 0)

    def _looks_torn(self, pos: int, msg_id: int) -> bool:
        """Whether the data seems to end inside the frame of this id. Fewer than four bytes cannot be the checksum of a
        record."""
        head = self.data[pos : pos + 12]
        if len(head) < 4:
            return True
        length = int.from_bytes(head[:4], "little")
        if not LENGTH_MIN <= length <= LENGTH_MAX:
            return False
        return head[4:] == msg_id.to_bytes(8, "little")[: len(head) - 4] and pos + 4 + length > len(self.data)
