"""Chains of records that were shifted by inserted bytes. Contract: storage.md, "Recovery", step 6; ADR 0238."""

from tests.support.frames import encode_frame
from toymq_py.storage.readings import Chain
from toymq_py.storage.record import valid_frame
from toymq_py.storage.shifted_chains import AT_BREAK, CHAINS_MAX, SEVERAL, joined, joints, shifted, split_copies

FRAMES = [encode_frame(n, 5, b"", b"p" * 20) for n in range(20)]
SIZE = len(FRAMES[0])


def frames(first_id: int, next_id: int) -> bytes:
    return b"".join(FRAMES[first_id:next_id])


def chain(first_id: int, next_id: int, at: int) -> Chain:
    return Chain(at, at + SIZE * (next_id - first_id), first_id, next_id)


def test_a_chain_is_split_behind_a_copy_of_what_another_one_ends_with() -> None:
    data = frames(1, 8) + frames(5, 12)
    first, second = chain(1, 8, 0), chain(5, 12, 7 * SIZE)
    pieces, copies = split_copies(data, [first, second])
    assert pieces == [first, chain(5, 8, 7 * SIZE), chain(8, 12, 10 * SIZE)]
    assert copies[first.end] == copies[10 * SIZE]


def test_frames_of_equal_ids_that_differ_split_nothing() -> None:
    other = b"".join(encode_frame(n, 5, b"", b"forged") for n in range(5, 12))
    chains = [chain(1, 8, 0), Chain(7 * SIZE, 7 * SIZE + len(other), 5, 12)]
    assert split_copies(frames(1, 8) + other, chains)[0] == chains


def test_chains_without_common_ids_are_left_as_they_are() -> None:
    chains = [chain(1, 4, 0), chain(6, 8, 200), chain(9, 12, 400)]
    assert split_copies(bytes(1000), chains) == (chains, {})


def test_pieces_are_joined_again() -> None:
    pieces = [chain(1, 4, 0), chain(4, 6, 3 * SIZE), chain(6, 9, 5 * SIZE + 1)]
    assert joined(pieces) == [chain(1, 6, 0), pieces[2]]


def test_whole_frames_and_few_bytes_join_chains_and_a_payload_does_not() -> None:
    near, far = b"q" * 25, b"q" * 26
    data = frames(0, 2) + near + frames(4, 6) + frames(0, 3) + frames(6, 8) + far + frames(8, 9)
    starts = [2 * SIZE + 25, 7 * SIZE + 25, 9 * SIZE + 51]
    chains = [chain(4, 6, starts[0]), chain(6, 8, starts[1]), chain(8, 9, starts[2])]
    keys = joints(data, chains, {}, 0, lambda pos: valid_frame(data, pos))
    assert [before[0] for before, _ in keys] == [AT_BREAK, AT_BREAK, (False, 1)]


def test_several_records_go_on_behind_any_bytes_unless_other_frames_of_their_ids_contradict_them() -> None:
    forged = b"".join(encode_frame(n, 5, b"", b"f" * 20) for n in range(3, 9))
    data = bytes(100) + forged + bytes(100) + frames(4, 9) + bytes(100) + frames(9, 12) + bytes(100) + frames(12, 13)
    starts = [100, 200 + 6 * SIZE, 300 + 11 * SIZE, 400 + 14 * SIZE]
    chains = [chain(n, to, at) for (n, to), at in zip([(3, 9), (4, 9), (9, 12), (12, 13)], starts, strict=True)]
    keys = joints(data, chains, {}, 0, lambda _pos: None)
    assert [SEVERAL in before for before, _ in keys] == [False, False, True, False]


def test_more_chains_than_damage_leaves_join_none() -> None:
    """The cost of joining a chain grows with their number, so beyond a bound none is joined."""
    data = frames(1, 8) + frames(5, 12)
    found = [chain(1, 8, 0), chain(5, 12, 7 * SIZE)]
    others = [Chain(at, at + 1, at, at + 1) for at in range(14 * SIZE, 14 * SIZE + CHAINS_MAX)]
    pieces, keys = shifted(data, found, 0, lambda _pos: None)
    assert (len(pieces), any(keys)) == (3, True)
    assert shifted(data, [*found, *others], 0, lambda _pos: None) == ([*found, *others], [((), ())] * (CHAINS_MAX + 2))
