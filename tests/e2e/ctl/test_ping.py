"""``toymqctl ping``."""

from tests.support.ctl import Ctl, values


def test_ping_for_programs(ctl: Ctl) -> None:
    first, second = values(ctl("ping", "--count", "2", "--json"))
    assert first.keys() == second.keys() == {"round_trip_s"}
