"""Logins: bounded in number and time, ended by their token, found by a digest."""

import pytest

from tests.support.fake_clock import FakeClock
from tests.support.tokens import authority, grants, table, token
from toymq_py.auth.tokens import Authority, Grant
from toymq_py.gateway.logins import IDLE_S, LIFETIME_S, LOGINS_PER_TOKEN, Logins


@pytest.fixture
def tokens() -> Authority:
    return authority(table("a", 'subscribe = ["t"]'), table("b"))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def logins(tokens: Authority, clock: FakeClock) -> Logins:
    return Logins(tokens, clock, lambda: None)


def grant(tokens: Authority, name: str) -> Grant:
    found = tokens.find(token(name))
    assert found is not None
    return found


def allowed(logins: Logins, login_id: str) -> str | None:
    """Use a login. Returns: the name of its token."""
    login = logins.find(login_id)
    used = None if login is None else logins.use(login)
    return None if used is None else used.name


def test_an_id_stands_for_its_token_and_no_other_id_does(logins: Logins, tokens: Authority) -> None:
    ids = {name: logins.begin(grant(tokens, name)) for name in "ab"}
    assert {name: allowed(logins, login_id) for name, login_id in ids.items()} == {"a": "a", "b": "b"}
    for wrong in ("", "x", ids["a"][:-1], ids["a"] + "x", ids["a"].swapcase(), token("a"), "é" * 43):
        assert allowed(logins, wrong) is None


def test_a_login_that_is_not_used_ends(logins: Logins, tokens: Authority, clock: FakeClock) -> None:
    login_id = logins.begin(grant(tokens, "a"))
    clock.advance(IDLE_S - 1)
    assert allowed(logins, login_id) == "a"
    clock.advance(IDLE_S)
    assert allowed(logins, login_id) is None
    assert len(logins) == 0


def test_a_login_that_is_used_ends_too(logins: Logins, tokens: Authority, clock: FakeClock) -> None:
    login_id = logins.begin(grant(tokens, "a"))
    seen = []
    for _ in range(round(LIFETIME_S / 600) + 1):
        clock.advance(600)
        seen.append(allowed(logins, login_id))
    assert seen == ["a"] * (round(LIFETIME_S / 600) - 1) + [None, None]


def test_one_token_has_so_many_and_the_oldest_makes_room(logins: Logins, tokens: Authority, clock: FakeClock) -> None:
    other = logins.begin(grant(tokens, "b"))
    ids = []
    for _ in range(LOGINS_PER_TOKEN):
        clock.advance(1)
        ids.append(logins.begin(grant(tokens, "a")))
    assert allowed(logins, ids[0]) == "a", "it was used last now"
    clock.advance(1)
    ids.append(logins.begin(grant(tokens, "a")))
    assert [allowed(logins, each) for each in ids] == ["a", None, *["a"] * (LOGINS_PER_TOKEN - 1)]
    assert allowed(logins, other) == "b"
    for _ in range(3 * LOGINS_PER_TOKEN):
        logins.begin(grant(tokens, "a"))
    assert len(logins) == LOGINS_PER_TOKEN + 1


def test_what_ended_unseen_is_forgotten_at_the_next_login(logins: Logins, tokens: Authority, clock: FakeClock) -> None:
    for _ in range(10):
        logins.begin(grant(tokens, "a"))
    clock.advance(IDLE_S)
    logins.begin(grant(tokens, "b"))
    assert len(logins) == 1


def test_a_logout_is_told_once(tokens: Authority, clock: FakeClock) -> None:
    told = []
    logins = Logins(tokens, clock, lambda: told.append(1))
    login = logins.find(logins.begin(grant(tokens, "a")))
    assert login is not None
    logins.end(login)
    logins.end(login)
    assert told == [1]
    assert logins.use(login) is None


def test_a_token_that_goes_takes_its_logins_along(logins: Logins, tokens: Authority) -> None:
    a, b = logins.begin(grant(tokens, "a")), logins.begin(grant(tokens, "b"))
    tokens.replace(grants(table("b")))
    assert len(logins) == 1
    tokens.replace(grants(table("a"), table("b")))
    assert [allowed(logins, each) for each in (a, b)] == [None, "b"]


def test_a_login_has_the_rights_that_its_token_has_now(logins: Logins, tokens: Authority) -> None:
    login = logins.find(logins.begin(grant(tokens, "a")))
    assert login is not None
    before = logins.use(login)
    tokens.replace(grants(table("a")))
    after = logins.use(login)
    assert before is not None
    assert after is not None
    assert [each.may_subscribe("t") for each in (before, after)] == [True, False]
