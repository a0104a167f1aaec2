"""``toymqctl pull``."""

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import Ctl, ok, on_a_terminal, refused, rows, values


def test_a_work_queue_from_the_shell(ctl: Ctl) -> None:
    for n in range(4):
        ok(ctl("pub", f"work.{n % 2}", f"job {n}"))
    (first, second) = values(ctl("pull", "work.*", "w", "--max", "2", "--visibility", "1h", "--json"))
    assert {first["topic"], second["topic"]} <= {"work.0", "work.1"}
    assert ok(ctl("ack", str(first["topic"]), "w", str(first["id"]))) == "acked 1\n"
    assert ok(ctl("nack", str(second["topic"]), "w", str(second["id"]), "--delay", "0")) == "gave back 1\n"
    left = rows(ctl("pull", "work.*", "w", "--max", "9", "--ack", "--wait", "5s"))
    while len(left) < 3:
        left += rows(ctl("pull", "work.*", "w", "--max", "9", "--ack", "--wait", "5s"))
    assert sorted(row[-1] for row in left) == sorted({"0", "1", "2", "3"} - {str(first["payload"])[-1]})
    nothing = ctl("pull", "work.*", "w")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr == "toymqctl: nothing is ready in work.* for w\n"
    refused(ctl("pull", "work.*", "w", "--fail-if-empty"), 1, "nothing is ready in work.* for w")
    refused(ctl("pull", "work.*", "w", "--max", "0"), 2, "--max")
    refused(ctl("pull", "work.*"), 2, "Missing argument 'CONSUMER'")
    ok(ctl("pub", "work.long", "y"))
    assert len(rows(ctl("pull", "work.long", "v", "--wait", "30d"))) == 1  # poll takes 24.8 days at most
    refused(ctl("pull", "work.*", "w", "--wait", "soon"), 2, "invalid duration 'soon': write 500ms, 5s or 2m")


def test_a_misspelled_topic_is_said(ctl: Ctl) -> None:
    """A pull creates a topic that does not exist: without a note a worker would wait in vain on a misspelled one."""
    note = "toymqctl: mispulled was not there and is made now: `toymqctl delete mispulled` removes it\n"
    assert ctl("pull", "mispulled", "w").stderr == note + "toymqctl: nothing is ready in mispulled for w\n"
    assert ctl("pull", "mispulled", "w").stderr == "toymqctl: nothing is ready in mispulled for w\n"


def test_a_terminal_says_that_what_is_pulled_is_not_acked(ctl: Ctl, broker: BrokerProcess) -> None:
    """`pull` prints messages like `sub`, which acks them, so it must say that it does not."""
    for job in ("tea", "cake"):
        ok(ctl("pub", "leased", job))
    note = "toymqctl: leased, not acked; what is not acked comes again when its lease ends: `toymqctl ack leased w 0`"
    assert note in on_a_terminal(broker, "pull", "leased", "w")
    assert "not acked" not in on_a_terminal(broker, "pull", "leased", "w", "--ack")
