"""The dashboard of one group of a cluster: what it shows of the other one, and what it leaves to that one's own dashboard."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.cluster_groups import Groups, say, two_groups
from tests.support.cluster_rig import ClusterRig
from tests.support.dashboard import NARROW, Visit, row
from tests.support.requirements import require

pytestmark = [pytest.mark.browser, require("chromium", "playwright", "etcd", "proc")]

NONE = "\u2013"
UNREAD = r"status of (421|503)"


def page_of(rig: ClusterRig) -> str:
    (node,) = rig.nodes.values()
    return f"http://{node.host}:{node.http_port}/"


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    """Run group a with the topic ``own`` and group b with ``there`` and a dead letter of it, both with a partition of
    ``orders``."""
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as beside:  # a browser has the loop of this thread
        found = beside.submit(stack.enter_context, two_groups(tmp_path_factory.mktemp("groups"))).result()
        say(found["a"], b"CREATE own group=a\nCREATE orders partitions=2\n", 2)
        say(found["b"], b"CREATE there group=b\n", 1)
        there = f"{page_of(found['b'])}v1/topics/there/messages"
        httpx.post(there, content=b"x").raise_for_status()
        assert httpx.get(there, params={"consumer": "c", "wait_s": 5}).json()["messages"][0]["id"] == 0
        httpx.post(f"{there}/0:nack", params={"consumer": "c", "dead": "true", "reason": "unpaid"}).raise_for_status()
        yield found


def whole(found: Any) -> str:
    return str(found.inner_text()).replace("\n", " ")


def test_a_group_that_is_away_is_trouble_and_its_figures_are_missing_or_old(groups: Groups, visit: Visit) -> None:
    """Found: the page said "live" and "Group b has 33 topics, 0 messages/s", while that group's figures stood still or were
    missing."""
    (node,) = groups["b"].nodes.values()
    node.kill()
    page = visit(page_of(groups["a"]))
    line = page.locator(".troubles li", has_text="group b")
    line.get_by_text("has had no leader for").wait_for()
    assert "look at its nodes (toymqctl cluster --group b)" in whole(line)
    page.locator(".banner", has_text="Group b does not answer").wait_for()
    row(page, "there").get_by_text("missing").wait_for()
    assert set(row(page, "there").locator(".number:not(.c-place)").all_inner_texts()) == {NONE}
    assert "2 partitions, 1 old or missing" in whole(row(page, "orders"))
    assert page.get_by_text("3 topics, 2 of them old or missing").is_visible()
    assert page.locator(".tile", has_text="Published").get_by_text("/s without group b").is_visible()
    assert "does not answer" in whole(page.locator(".cluster li", has_text="Group b"))
    page.goto(f"{page_of(groups['a'])}#/topics/there")
    page.get_by_role("heading", name="Group b has this topic, and does not answer.").wait_for()
    page.get_by_role("link", name="What to do").click()
    line.wait_for()
    node.start()
    row(page, "there.dlq").get_by_text("dead letters").wait_for()
    assert page.locator(".banner", has_text="Group b").count() == 0
    assert row(page, "there").get_by_text("missing").count() == 0
    node.kill()
    row(page, "there").get_by_text("old", exact=True).wait_for()
    assert row(page, "there").get_by_title("As of 20").is_visible()
    assert row(page, "own").get_by_text("old").count() == 0
    node.start()
    row(page, "there").get_by_text("old", exact=True).wait_for(state="detached")


def test_a_topic_of_another_group_is_asked_for_once_and_left_to_that_groups_page(groups: Groups, visit: Visit) -> None:
    """Found: the page asked for the topic's settings each second, and offered Redrive all, which was refused."""
    there = page_of(groups["b"])
    page = visit(f"{page_of(groups['a'])}#/topics/there", broken=UNREAD)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.rpartition("/v1/")[2]))
    page.reload()
    assert page.get_by_role("link", name="open it there").get_attribute("href") == f"{there}#/topics/there"
    assert page.locator(".head").get_by_text("group b").is_visible()
    for name in ("Delete", "Purge", "Settings", "Publish", "Move c", "Forget c"):
        assert page.get_by_role("button", name=name, exact=True).is_disabled()
    page.get_by_role("link", name="Dead letters 1").click()
    page.get_by_text("The messages could not be loaded. The topic is in group b").wait_for()
    for number in range(3):  # each publish changes what is told of it
        httpx.post(f"{there}v1/topics/there/messages", content=b"x").raise_for_status()
        page.get_by_role("link", name=f"Messages {number + 2}").wait_for()
    for name in ("Redrive all", "Redrive chosen", "Discard chosen", "Search"):
        assert not page.get_by_role("button", name=name).is_visible()
    assert sorted(one for one in asked if one.startswith("topics/there")) == [
        "topics/there.dlq/log?from=0&max=50", "topics/there/settings",
    ]  # fmt: skip


def test_a_list_and_a_partitioned_topic_say_which_group_has_what(groups: Groups, visit: Visit) -> None:
    url = page_of(groups["a"])
    page = visit(url)
    page.get_by_role("columnheader", name="Group").wait_for()
    for topic, place in (("own", "a"), ("there", "b"), ("there.dlq", "b"), ("orders", "a, b")):
        assert row(page, topic).locator(".c-place").inner_text() == place
    page.get_by_role("button", name="Group", exact=True).click()
    assert page.locator(".trow .topicname").all_inner_texts() == ["there.dlq", "there", "orders", "own"]
    row(page, "orders").click()
    page.get_by_role("columnheader", name="Group").wait_for()
    parts = httpx.get(f"{url}v1/topics", params={"pattern": "orders#*"}).json()["topics"]
    assert [part["topic"] for part in parts] == ["orders#0", "orders#1"]
    shown = [page.get_by_role("row", name=name).locator("td").first.inner_text() for name in ("orders#0", "orders#1")]
    assert sorted(shown) == ["a", "b"]
    narrow = visit(url, NARROW)
    row(narrow, "own").wait_for()
    assert row(narrow, "own").locator(".c-place").is_hidden()
