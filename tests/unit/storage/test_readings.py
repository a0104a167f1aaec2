"""Which chains of records behind damage belong to the log. Contract: storage.md, "Recovery", step 6; ADR 0101."""

from dataclasses import dataclass, field

from toymq_py.storage.readings import Chain, Ending, Passed, best_reading, fits

SIZE = 100


def chain(first_id: int, count: int, at: int, size: int = SIZE) -> Chain:
    return Chain(at, at + count * size, first_id, first_id + count)


@dataclass
class Bytes:
    """A judge that knows which bytes follow each chain."""

    passes: dict[Chain, Passed] = field(default_factory=dict)
    ends: dict[Chain, Ending] = field(default_factory=dict)
    recognized: set[Chain] = field(default_factory=set)
    claims: dict[Chain, int] = field(default_factory=dict)

    def passed(self, chain: Chain) -> Passed:
        return self.passes.get(chain, (chain.next_id, chain.end))

    def ending(self, chain: Chain, passed: Passed) -> Ending:
        return self.ends.get(chain, Ending.NOTHING)

    def claimed_until(self, chain: Chain) -> int:
        return self.claims.get(chain, 0)

    def is_broken_off(self, chain: Chain) -> bool:
        return chain in self.recognized


def test_missing_ids_need_room() -> None:
    assert fits(0, 5, chain(7, 1, 60))
    assert not fits(0, 5, chain(7, 1, 59)), "two records of 30 bytes"
    assert not fits(0, 5, chain(5, 1, 60)), "no id is missing"


def test_chains_that_do_not_contradict_each_other_all_count() -> None:
    chains = [chain(1, 3, 100), chain(5, 1, 500), chain(9, 20, 1000)]
    assert best_reading(chains, Bytes()) == (chains, Ending.BYTES)


def test_of_chains_that_contradict_each_other_the_better_reading_counts() -> None:
    before, inside, behind = chain(1, 30, 100), chain(20, 5, 3200), chain(32, 10, 3900)
    assert best_reading([before, inside, behind], Bytes()) == ([before, behind], Ending.NOTHING)


def test_what_ends_the_log_goes_before_any_number_of_records() -> None:
    forged, real = chain(6, 40, 130), chain(6, 5, 4300)
    assert best_reading([forged, real], Bytes())[0] == [forged]
    assert best_reading([forged, real], Bytes(ends={real: Ending.BYTES})) == ([real], Ending.BYTES)


def test_the_id_of_the_next_file_tells_the_end_but_less_than_the_bytes() -> None:
    forged, real = chain(6, 40, 130), chain(6, 5, 4300)
    assert best_reading([forged, real], Bytes(ends={real: Ending.ID}))[0] == [real]
    assert best_reading([forged, real], Bytes(ends={forged: Ending.ID, real: Ending.BYTES}))[0] == [real]


def test_a_recognized_record_behind_a_chain_counts_but_does_not_decide_alone() -> None:
    forged, real = chain(6, 20, 130), chain(6, 5, 4300)
    assert best_reading([forged, real], Bytes(recognized={real}))[0] == [real]
    many = chain(6, 200, 130)
    assert best_reading([many, chain(6, 5, 30_000)], Bytes(recognized={chain(6, 5, 30_000)}))[0] == [many]


def test_a_chain_inside_a_record_with_a_header_counts_for_less() -> None:
    real, inside = chain(6, 4, 130), chain(8, 20, 600)
    judge = Bytes(claims={real: 3000}, ends={inside: Ending.BYTES})
    assert best_reading([real, inside], judge)[0] == [real]
    healthy = chain(8, 200, 600)
    judge = Bytes(claims={real: 30_000})
    assert best_reading([real, healthy], judge)[0] == [healthy], "a header in a payload does not hide a log"


def test_a_record_that_is_passed_as_a_whole_hides_what_it_holds() -> None:
    real, inside, behind = chain(1, 3, 100), chain(6, 2, 450), chain(5, 9, 900)
    judge = Bytes(passes={real: (5, 900)})
    assert best_reading([real, inside, behind], judge)[0] == [real, behind]


def test_displaced_chains_may_begin_anywhere() -> None:
    low, high = chain(0, 10, 2000), chain(50, 10, 10)
    assert best_reading([high, low], Bytes(ends={low: Ending.BYTES}), displaced=True)[0] == [high]
