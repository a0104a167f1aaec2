"""The part of a limit that one token or address may use."""

import pytest

from toymq_py.auth.holder import Holder


@pytest.mark.parametrize(("percent", "limit", "share"), [(50, 1000, 500), (50, 3, 1), (1, 10, 1), (100, 7, 7)])
def test_a_share_is_a_part_of_the_limit_and_one_at_least(percent: int, limit: int, share: int) -> None:
    holder = Holder("token a", percent)
    assert holder.share(limit) == share
    holder.held_bytes = share
    assert not holder.exceeds(limit)
    holder.held_bytes += 1
    assert holder.exceeds(limit)


def test_admins_and_this_machine_have_all_of_it() -> None:
    holder = Holder("this machine", 50, limited=False)
    holder.held_bytes = 2000
    assert holder.share(1000) == 1000
    assert not holder.exceeds(1000)
