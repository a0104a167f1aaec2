"""Tokens and their rights. Contract: clients.md, "Command lines" (the auth file)."""

import re
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest

from toymq_py.auth.tokens import ANSWERS_MAX, Authority, parse_grants, read_grants
from toymq_py.errors import AuthFailed, ConfigError

SECRET = "a-token-that-none-may-see"


def table(name: str, token: str, rest: str = "") -> str:
    return f'[[token]]\nname = "{name}"\nsha256 = "{sha256(token.encode()).hexdigest()}"\n{rest}\n'


def authority(text: str) -> Authority:
    return Authority(parse_grants(text, "auth.toml"))


def test_a_token_has_the_rights_of_its_table() -> None:
    grant = authority(
        table("a", "aaa", 'publish = ["orders.*"]\nsubscribe = ["orders.>", "jobs"]') + table("b", "bbb", "admin = true")
    ).find("aaa")
    assert grant is not None
    assert (grant.name, grant.admin) == ("a", False)
    assert [grant.may_publish(name) for name in ("orders.eu", "orders.eu.x", "orders.dlq")] == [True, False, False]
    assert [grant.may_subscribe(name) for name in ("orders.eu.x", "jobs", "orders.*", "orders.>", ">", "*", "orders")] == [
        True, True, True, True, False, False, False,
    ]  # fmt: skip
    assert grant.sees("jobs")
    assert not grant.sees("other")


def test_the_right_to_a_topic_is_one_to_its_partitions() -> None:
    rights = 'publish = ["orders", "one#3"]\nsubscribe = ["orders", "one#3", "orders.dlq"]'
    grant = authority(table("a", "aaa", rights)).find("aaa")
    assert grant is not None
    assert [grant.may_publish(name) for name in ("orders", "orders#3", "one#3", "one#4", "one", "other#3")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip
    assert [grant.may_subscribe(name) for name in ("orders#*", "orders#0", "orders#0.dlq", "one#*", "other#*")] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_token_without_rights_has_none() -> None:
    grant = authority(table("a", "aaa")).find("aaa")
    assert grant is not None
    assert not any((grant.admin, grant.may_publish("t"), grant.may_subscribe("t"), grant.sees("t")))


def test_an_admin_sees_every_topic_and_reads_none() -> None:
    grant = authority(table("a", "aaa", "admin = true")).find("aaa")
    assert grant is not None
    assert grant.sees("orders.dlq")
    assert not grant.may_subscribe("orders.dlq")
    assert not grant.may_publish("orders")


def test_an_admin_reads_the_dead_letters_of_what_it_may_subscribe_to() -> None:
    known = authority(
        table("a", "aaa", 'admin = true\nsubscribe = ["orders.>"]') + table("b", "bbb", 'subscribe = ["orders.>"]')
    )
    admin, other = known.find("aaa"), known.find("bbb")
    assert admin is not None
    assert other is not None
    for name in ("orders.a.dlq", "orders.a.b.dlq", "orders.*.dlq"):
        assert (admin.may_subscribe(name), other.may_subscribe(name)) == (True, False), name
    for name in ("jobs.dlq", "*.dlq", ".dlq", "dlq", "orders.dlq.dlq"):
        assert not admin.may_subscribe(name), name
    assert not other.allows_all_of(admin), "a session that reads letters ends when the token is no admin's any more"
    assert admin.allows_all_of(other)


def test_what_is_no_token() -> None:
    known = authority(table("a", "aaa"))
    digest = sha256(b"aaa").hexdigest()
    assert [known.find(token) for token in ("", "aa", "aaaa", "AAA", digest, "ä", "\0", "\udcff")] == [None] * 8


def test_a_changed_file_changes_the_rights() -> None:
    known = authority(table("a", "aaa", 'subscribe = ["x", "y"]') + table("b", "bbb"))
    first, gone = known.find("aaa"), known.find("bbb")
    assert first is not None
    assert gone is not None
    told: list[bool] = []
    known.on_change.append(lambda: told.append(known.find("aaa") is not first))
    known.replace(parse_grants(table("renamed", "aaa", 'subscribe = ["y"]'), "auth.toml"))
    assert told == [True], "a listener sees the new table"
    now = known.present(first)
    assert now is not None
    assert now.name == "renamed"
    assert not now.may_subscribe("x")
    assert first.allows_all_of(now)
    assert not now.allows_all_of(first)
    assert known.present(gone) is None
    assert known.find("bbb") is None


def test_answers_that_are_remembered_are_bounded() -> None:
    grant = authority(table("a", "aaa", 'publish = ["t.*"]')).find("aaa")
    assert grant is not None
    for n in range(2 * ANSWERS_MAX + 1):
        assert grant.may_publish(f"t.{n}")
        assert not grant.may_publish(f"u.{n}")
    assert len(grant.publish._answers) <= ANSWERS_MAX


def test_a_name_that_no_topic_can_have_is_refused_and_not_remembered() -> None:
    """Found: each list of each token remembered 4,096 names of up to 64 KiB: a token without rights took 2 GiB."""
    grant = authority(table("a", "aaa", 'publish = ["t.>"]')).find("aaa")
    assert grant is not None
    tail = "x" * 64 * 1024
    tracemalloc.start()
    try:
        for n in range(500):
            assert not grant.may_publish(f"t.{n}.{tail}")
            assert not grant.sees(f"{n}*{tail}")
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20, f"{held} bytes are held for names that no topic can have"
    names = ("", "t.", "t.é", "t./", "t.\n", "t.x", "t.>")
    assert [grant.may_publish(name) for name in names] == [False, True, False, False, False, True, True]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", r"f has no \[\[token\]\]"),
        ("[[token]]\nname = \n", r"f is not TOML: .*line 2"),
        ("tokens = 1", "f: unknown name 'tokens'"),
        ("token = 1", r"f: invalid token: write tables"),
        ("[token]\nname = 'a'", r"f: invalid token: write tables"),
        ("[[token]]\n", "f, line 1: name is missing: write name ="),

        ("[[token]]\nname = 7\n", "f, line 2: name: token name must be"),
        ("[[token]]\nname = 'a/b'\n", "f, line 2: name: token name must be"),
        ("[[token]]\nname = 'a'\n", "f, line 1: sha256 is missing: write the token's SHA-256 digest, 64 hex"),
        (f"[[token]]\nname = 'a'\n\nsha256 = '{SECRET}'\n", "f, line 4: invalid sha256: write the token's"),
        (table("a", "x", "admin = 1"), "f, line 4: invalid admin: write true or false"),
        (table("a", "x", "admin = 'yes'"), "f, line 4: invalid admin: write true or false"),
        (table("a", "x", "publish = '>'"), "f, line 4: invalid publish: write a list"),
        (table("a", "x", "publish = [1]"), "f, line 4: invalid publish: write a list"),
        (table("a", "x", "subscribe = ['ok', 'a*']"), "f, line 4: subscribe, number 2: a wildcard is a whole word"),
        (table("a", "x", "subscribe = ['../x']"), "f, line 4: subscribe, number 1: topic name must be"),
        (table("a", "x", "'secret' = 1"), "f, line 4: unknown name 'secret'; a token has name, sha256, publish"),
        (table("a", "x", "expires = '2027-01-01'"), "f, line 4: invalid expires: write a day, 2027-01-31"),
        (table("a", "x", "expires = 2027-01-01T00:00:00"), "f, line 4: invalid expires: .* or a time with its zone"),
        (table("a", "x", "expires = 12:00:00"), "f, line 4: invalid expires: write a day"),
        (table("a", "x") + "# a comment\n" + table("a", "y"), "f, line 7: name: there are two tokens a"),
        (table("a", "x") + table("b", "x"), "f, line 7: sha256: a and b are the same token"),
        ("token = [{name = 'a'}, {name = 'b'}]", "f, token 1: sha256 is missing: write the token's"),
    ],
)
def test_a_bad_file_is_explained(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        parse_grants(text, "f")
    assert SECRET not in f"{raised.value!r} {raised.value.__cause__!r}"


def test_a_file_that_cannot_be_read_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "auth.toml"
    with pytest.raises(ConfigError, match=r"cannot read the auth file .*auth.toml: No such file"):
        read_grants(str(path))
    path.write_bytes(b'[[token]]\nname = "\xff"\n')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 18"):
        read_grants(str(path))
    path.write_text(table("a", "aaa"))
    assert [grant.name for grant in read_grants(str(path))] == ["a"]


def test_no_digest_in_a_repr() -> None:
    (grant,) = parse_grants(table("a", SECRET), "f")
    assert sha256(SECRET.encode()).hexdigest()[:8] not in repr(grant).lower()
    assert repr(grant) == "Grant(name='a', admin=False)"


def test_a_token_is_refused_from_the_time_on_that_it_expires() -> None:
    now = [0]
    text = table("a", "aaa", "expires = 1970-01-01T02:00:00+01:00") + table("b", "bbb", "expires = 1970-01-02")
    text += table("c", "ccc")
    known = Authority(parse_grants(text, "auth.toml"), lambda: now[0])
    grant = known.admit("aaa")
    assert [grant.name for grant in known.expiring()] == ["a", "b"]
    now[0] = 3600 * 10**9 - 1
    assert known.present(grant) is known.admit("aaa")
    now[0] += 1
    with pytest.raises(AuthFailed, match="the token a expired at 1970-01-01T01:00:00Z"):
        known.admit("aaa")
    assert known.present(grant) is None
    now[0] = 24 * 3600 * 10**9
    with pytest.raises(AuthFailed, match="the token b expired"):
        known.admit("bbb")
    assert known.admit("ccc").expires_ns is None
    with pytest.raises(AuthFailed, match="this token is not in the auth file"):
        known.admit("ddd")


def test_a_certificate_stands_for_the_one_token_that_says_so() -> None:
    ends = "certificate = true\nexpires = 2001-01-02"
    found = authority(
        table("a", "aaa", "certificate = true") + table("b", "bbb", "certificate = true") + table("c", "ccc")
        + table("late", "ddd", ends)
    )  # fmt: skip
    assert found.certified(["x", "a"]).name == "a"
    for names, text in (
        (["c"], "certificate (c) names no token that has certificate = true"), ([], "(no name) names no token"),
        (["a", "b"], "names several tokens: a, b"), (["late"], "the token late expired"),
    ):  # fmt: skip
        with pytest.raises(AuthFailed, match=re.escape(text)):
            found.certified(names)
    with pytest.raises(ConfigError, match="line 4: invalid certificate: write true or false"):
        authority(table("a", "aaa", "certificate = 1"))
