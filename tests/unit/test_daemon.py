"""The daemon's checks before it serves."""

import pytest

from toymq_py import daemon


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "room"),
    [(1024, 1024, 768, 768), (1024, 1024, 10_000, 768), (256, 256, 200, 128), (1024, 20_000, 10_000, 10_000)],
)
def test_connections_leave_descriptors_to_the_files(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, room: int
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(daemon.resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(daemon.resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert daemon.room_for_connections(wanted) == room
    assert limits[-1] == (hard, hard), "the soft limit is raised"


def test_a_limit_that_cannot_be_raised_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int, limit: tuple[int, int]) -> None:
        raise ValueError(limit)

    monkeypatch.setattr(daemon.resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(daemon.resource, "setrlimit", refuse)
    assert daemon.room_for_connections(10_000) == 768
