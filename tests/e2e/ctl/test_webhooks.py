"""``toymqctl webhooks``."""

from pathlib import Path

from tests.support.ctl import Ctl, ok, refused, rows, values
from tests.support.hook import hooked


def test_a_webhook_is_set_tested_listed_and_deleted(web: Ctl, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a good secret\n")
    assert ok(web("webhooks")) == "no webhooks: `toymqctl webhooks set NAME TOPIC URL` makes one\n"
    with hooked() as hook:
        options = ("--secret-file", str(tmp_path / "secret"), "--timeout", "3s")
        made = ok(web("webhooks", "set", "billing", "orders.*", hook.url, *options))
        assert made == f"billing: orders.* to {hook.url}, signed\n"
        assert ok(web("webhooks", "test", "billing")) == "billing: taken\n"
        headers, body = hook.next()
        assert (headers["x-test"], body) == ("true", b"This is a test of a toymq webhook, not a message.")
        assert "webhook-signature" in headers
        hook.status = 500
        refused(web("webhooks", "test", "billing"), 1, "billing: 127.0.0.1 answered 500")
        hook.next()
        hook.status = 200
        ok(web("pub", "orders.1", "hello"))
        assert hook.next()[1] == b"hello"
        assert rows(web("webhooks", "list"))[1] == ["billing", "orders.*", hook.url, "yes", "ok"]
        ok(web("webhooks", "set", "billing", "orders.*", hook.url))
        (found,) = values(web("webhooks", "--json"))
        assert (found["secret"], found["timeout_ms"]) == ("(set)", 10_000), "a set without a secret keeps it"
        unsigned = ok(web("webhooks", "set", "billing", "orders.*", hook.url, "--no-secret"))
        assert unsigned == f"billing: orders.* to {hook.url}\n"
        assert ok(web("webhooks", "delete", "billing")) == "deleted billing\n"
    refused(web("webhooks", "delete", "billing"), 1, "NO_SUCH_WEBHOOK: no webhook billing: `toymqctl webhooks` lists them")
    refused(web("webhooks", "test", "billing"), 1, "NO_SUCH_WEBHOOK: no webhook billing")


def test_a_push_that_is_not_taken_is_said_whole(web: Ctl) -> None:
    """Found: the failure was a column of the table, and a terminal cut just its reason. It has a line of its own now."""
    with hooked() as hook:
        hook.status = 500
        ok(web("pub", "orders", "x"))
        ok(web("webhooks", "set", "crm", "orders", hook.url))
        hook.next()
        hook.next()  # the second attempt: the first one failed
        shown = ok(web("webhooks")).splitlines()
    assert shown[1].split() == ["crm", "orders", hook.url, "no", "fails"]
    assert shown[2].startswith("crm: its last push was not taken, and is tried again: 127.0.0.1 answered 500")


def test_a_misspelled_topic_is_said(web: Ctl) -> None:
    with hooked() as hook:
        topics = ("mishooked", "mishooked", "miss.*")
        first, second, pattern = (web("webhooks", "set", "w", topic, hook.url) for topic in topics)
        ok(web("webhooks", "delete", "w"))
    assert first.stderr == "toymqctl: mishooked was not there and is made now: `toymqctl delete mishooked` removes it\n"
    assert second.stderr == pattern.stderr == ""


def test_a_message_that_is_not_tried_again_is_a_dead_letter(web: Ctl) -> None:
    """Found: a push that had failed for the last time was reported as "is tried again"."""
    ok(web("create", "given", "max_attempts=1"))
    with hooked() as hook:
        hook.status = 500
        ok(web("pub", "given", "x"))
        ok(web("webhooks", "set", "up", "given", hook.url))
        hook.next()
        while all(each["name"] != "up" or each["letters"] != 1 for each in values(web("webhooks", "--json"))):
            pass  # the answer is on its way
        shown = ok(web("webhooks")).splitlines()
    assert [line for line in shown if line.startswith("up:")] == [
        "up: its last push was not taken: 127.0.0.1 answered 500", "up: dead letters since the broker's start: 1 "
        "(`toymqctl dlq list given`)",
    ]  # fmt: skip


def test_what_is_wrong_is_said(web: Ctl, ctl: Ctl) -> None:
    refused(web("webhooks", "set", "a", "orders", "ftp://a/"), 1, "BAD_ARGUMENT: a webhook pushes to an http or https URL")
    refused(web("webhooks", "set", "a/b", "orders", "http://a/"), 1, "BAD_NAME: webhook name must be 1 to ")
    refused(web("webhooks", "set", "a", "t", "http://a/", "--secret-file", "/dev/null", "--no-secret"), 2, "exclude each other")
    refused(ctl("webhooks"), 2, "this broker has no gateway: start it with --http 127.0.0.1:7800")
    refused(ctl("--http-url", "http://127.0.0.1:1", "webhooks"), 1, "cannot ask http://127.0.0.1:1: ")
