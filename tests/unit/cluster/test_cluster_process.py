"""What a node's process logs about itself; ``tests/e2e/test_cluster.py`` runs it."""

import sys

import pytest

from toymq_py.cluster.process import namesakes, over_tls, preload, unmade
from toymq_py.config.options import ServeOptions
from toymq_py.errors import ConfigError
from toymq_py.replication.agreement import Member, Seat


@pytest.mark.parametrize(
    ("advertised", "listen", "tls", "found"),
    [
        ("h:1", "h:1", "", ""), ("h:1", "h:1", "h:2", "h:2"), ("h:2", "127.0.0.1:1", "h:2", "h:2"),
        ("proxy:443", "127.0.0.1:1", "", "proxy:443"), ("proxy:443", "h:1", "h:2", "proxy:443"),
        ("name:1", "0.0.0.0:1", "h:2", "h:2"),
    ],
)  # fmt: skip
def test_clients_are_told_an_address_of_tls_only_where_it_may_be_spoken(
    advertised: str, listen: str, tls: str, found: str
) -> None:  # fmt: skip
    assert over_tls(advertised, listen, tls) == found


@pytest.mark.parametrize(
    ("group", "others", "used", "says"),
    [
        (None, [], None, "etcd knows no cluster c: `toymqctl cluster init` makes one"),
        ("b", [], "/d", "etcd knows no cluster c: `toymqctl cluster --group b init` makes one"),
        ("b", ["a"], None, "the cluster c has no group b, it has a: `toymqctl cluster --group b init` makes it, or name one"),
        (None, ["b", "a"], None, "the cluster c has no group g0, it has a, b: `toymqctl cluster init` makes it, or name one"),
        ("b", ["a"], "/d", "the group b is no longer in the cluster c, which has a: `toymqctl cluster remove-group` took"),
    ],
)  # fmt: skip
def test_a_node_without_settings_says_what_is_missing(
    group: str | None, others: list[str], used: str | None, says: str
) -> None:  # fmt: skip
    """Found: a node of a group that was removed said that the cluster was still to be made."""
    assert unmade("c", group, others, used).startswith(says)


def test_a_node_says_that_another_one_runs_under_its_name() -> None:
    """Found: a node's start did not report it; later commands found two nodes of that name."""
    me = Member("1" * 32, "a1", "h:1", "h:2")
    other = Member("2" * 32, "a1", "h:3", "h:4")
    mine, twin = (Seat(member, "5.0", "FOLLOWING", 0, 0) for member in (me, other))
    gone = Seat(other, "5.0", "FOLLOWING", 0, 0, present=False)
    follower = Seat(Member("3" * 32, "a2", "h:5", "h:6"), "5.0", "FOLLOWING", 0, 0)
    assert namesakes([mine, gone, follower], me) == ""
    assert namesakes([mine, twin, follower], me) == (
        f"another node of this group is named a1, too: that of h:3 ({other.replica}). Start one of them with a --name of its"
        " own"
    )


def test_without_the_extra_of_the_gateway_there_is_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found: such a node was elected, could not serve, and was elected again, 920 times in 12 minutes."""
    for loaded in [name for name in sys.modules if name.startswith("toymq_py.gateway")]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, "httptools", None)
    with pytest.raises(ConfigError, match=r"^--http needs httptools: .*'\.\[http\]'$"):
        preload(ServeOptions(http="127.0.0.1:0"))
    preload(ServeOptions())
