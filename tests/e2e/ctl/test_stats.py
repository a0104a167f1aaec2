"""``toymqctl stats``."""

from tests.support.ctl import Ctl, ok, values


def test_stats(ctl: Ctl) -> None:
    ok(ctl("pub", "counted", "x"))
    names = [line.split("  ")[0] for line in ok(ctl("stats")).splitlines()]
    assert names == [
        "version", "uptime", "connections", "topics", "messages", "published", "delivered", "acked", "errors", "fsync",
        "memory", "disk free",
    ]  # fmt: skip
    (told,) = values(ctl("stats", "--json"))
    assert f"{told['publish_total']}, " in ok(ctl("stats"))
