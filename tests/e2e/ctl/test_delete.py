"""``toymqctl delete``."""

from tests.support.ctl import Ctl, ok, refused


def test_delete_asks(ctl: Ctl) -> None:
    ok(ctl("pub", "doomed", "a", "b"))
    kept = ctl("delete", "doomed", stdin="n\n")
    assert (kept.exit_code, kept.stdout) == (1, "")
    assert kept.stderr.endswith("delete doomed: 2 messages, 0 consumers? [y/N]: n\ntoymqctl: nothing was deleted\n")
    unanswered = ctl("delete", "doomed", stdin="")
    assert unanswered.exit_code == 2
    assert "nothing was deleted: use --yes to delete without asking" in unanswered.stderr
    assert ctl("delete", "doomed", stdin="y\n").stdout == "deleted doomed with 2 messages\n"
    ok(ctl("pub", "doomed", "c"))
    assert ok(ctl("delete", "doomed", "--yes")) == "deleted doomed with 1 message\n"
    refused(ctl("delete", "doomed"), 1, "NO_SUCH_TOPIC")
