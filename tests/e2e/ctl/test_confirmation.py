"""What asks before it destroys: ``delete`` and ``purge``."""

import pytest

from tests.support.ctl import Ctl, ok, refused


@pytest.mark.parametrize(("verb", "participle"), [("delete", "deleted"), ("purge", "purged")])
def test_nothing_happens_without_a_yes(ctl: Ctl, verb: str, participle: str) -> None:
    topic = f"asked.{verb}"
    ok(ctl("pub", topic, "a"))
    for answer, code, says in (
        ("n\n", 1, f"nothing was {participle}\n"),
        ("", 2, f"use --yes to {verb} without asking"),
        ("perhaps\nno\n", 1, f"nothing was {participle}\n"),
    ):
        found = ctl(verb, topic, stdin=answer)
        assert (found.exit_code, found.stdout) == (code, "")
        assert f"{verb} {topic}: 1 message, 0 consumers? [y/N]" in found.stderr, "the question is no part of the output"
        assert says in found.stderr
    assert "messages  1" in ok(ctl("describe", topic))
    assert ctl(verb, topic, stdin="y\n").exit_code == 0
    refused(ctl(verb, "asked.nowhere"), 1, "NO_SUCH_TOPIC")
