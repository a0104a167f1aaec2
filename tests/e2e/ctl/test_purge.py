"""``toymqctl purge``."""

from tests.support.ctl import Ctl, ok, refused


def test_purge_asks(ctl: Ctl) -> None:
    ok(ctl("create", "full", "visibility=5s"))
    ok(ctl("pub", "full", "a", "b"))
    kept = ctl("purge", "full", stdin="n\n")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.endswith("purge full: 2 messages, 0 consumers? [y/N]: n\ntoymqctl: nothing was purged\n")
    assert "nothing was purged: use --yes to purge without asking" in ctl("purge", "full", stdin="").stderr
    assert ctl("purge", "full", stdin="y\n").stdout == "purged full of 2 messages\n"
    ok(ctl("pub", "full", "c"))
    assert ok(ctl("purge", "full", "--yes")) == "purged full of 1 message\n"
    assert "visibility=5s" in ok(ctl("config", "full")), "its settings stay"
    refused(ctl("purge", "nowhere", "--yes"), 1, "NO_SUCH_TOPIC")
