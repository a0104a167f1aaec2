"""``toymqctl config``."""

import json

from tests.support.ctl import Ctl, ok, refused


def test_limits_are_written_as_people_say_them(ctl: Ctl) -> None:
    ok(ctl("create", "small", "backlog_max_messages=1", "backlog_max_bytes=64MiB", "retain_max_age=7d", "when_full=reject"))
    shown = ok(ctl("config", "small")).splitlines()
    assert shown == ["backlog_max_messages=1", "backlog_max_bytes=64MiB", "when_full=reject", "retain_max_age=7d"]
    assert json.loads(ok(ctl("config", "small", "--json"))) == {
        "backlog_max_messages": 1, "backlog_max_bytes": 64 << 20, "when_full": "reject", "retain_max_age": 604_800_000,
    }  # fmt: skip
    ok(ctl("pub", "small", "a"))
    refused(ctl("pub", "small", "b"), 1, "QUEUE_FULL")
    ok(ctl("config", "small", "when_full=drop-oldest"))
    ok(ctl("pub", "small", "b"))
    assert json.loads(ok(ctl("describe", "small", "--json")))["dropped_total"] == 1
    refused(ctl("config", "small", "when_full=drop"), 1, "write reject, drop-oldest or default")
    refused(ctl("config", "small", "colour=1"), 1, "colour is not a topic setting")
