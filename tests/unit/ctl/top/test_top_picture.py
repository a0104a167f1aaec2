"""The picture of `toymqctl top` in the documentation: ``make pictures`` writes it (ADR 0133)."""

import os
import re
from pathlib import Path

from tests.support.broker_process import ROOT
from tests.support.broker_stats import consumer, stats, topic
from tests.support.told_feed import ToldFeed
from toymqctl.top.figures import TOPIC_COLUMNS
from toymqctl.top.screen import Top

PICTURE = "toymqctl-top.svg"
TOTALS = {"publish_total": 2610, "deliver_total": 3132, "ack_total": 3132}


def at(second: int) -> dict[str, object]:
    """Return a broker's data at a second: it serves orders, clicks and audit; no consumer has sent the emails for a minute."""
    rates = {"orders": 502, "clicks": 2058, "audit": 50, "emails": 40}
    ids = {name: 4000 + rate * second for name, rate in rates.items()}
    waiting = {"orders": 1451, "clicks": 0, "audit": 246, "emails": 2400 + 40 * second}
    inflight = {"orders": 142, "audit": 100}
    ages = {"orders": 4.9, "audit": 4.5, "emails": 60.0 + second}
    letters = topic("orders.dlq", messages=5, letters=3, bytes=620)
    topics = [
        topic(name, consumer(backlog=waiting[name], oldest_unacked_age_s=ages.get(name, 0.0), inflight=inflight.get(name, 0)),
              next_id=ids[name], messages=ids[name], bytes=ids[name] * 217)
        for name in rates
    ]  # fmt: skip
    totals = {name: total * second for name, total in TOTALS.items()}
    return stats(*topics, letters, uptime_s=3600.0 + second, **totals)


async def drawn() -> str:
    app = Top(ToldFeed(at(0), at(1)), every_s=None)
    async with app.run_test(size=(112, 11)) as pilot:
        for _ in range(2):
            await app.poll()
        await pilot.pause()
        found = app.export_screenshot(title="toymqctl top")
    elsewhere = r"@font-face \{.*?\}|<!--.*?-->"  # fonts that a browser would load
    return re.sub(elsewhere, "", found, flags=re.DOTALL)


async def test_the_picture_has_every_column(tmp_path: Path) -> None:
    picture = await drawn()
    (Path(os.environ.get("TOYMQ_PICTURES") or tmp_path / "images").parent / PICTURE).write_text(picture)
    assert "https:" not in picture
    for kept in (picture, (ROOT / "docs" / PICTURE).read_text()):
        words = kept.replace("&#160;", " ")
        assert [column.name for column in TOPIC_COLUMNS if column.name not in words] == []
