"""Jobs of a partitioned topic."""

import asyncio

from tests.support.worker_rig import until, working
from toymq import App, Client


async def test_the_jobs_of_a_group_are_in_one_partition_and_in_order(app: App, mq: Client) -> None:
    done: dict[str, list[int]] = {}
    running: set[str] = set()

    @app.worker("parted", concurrency=4, mode="keyed")
    async def work(group: str, number: int) -> None:
        assert group not in running
        running.add(group)
        await asyncio.sleep(0)
        done.setdefault(group, []).append(number)
        running.remove(group)

    await mq.create("parted", {"partitions": 3})
    async with working(app):
        await until(lambda: app.runners != [])
        for number in range(60):
            group = "abcdef"[number % 6]
            await work.options(group=group).send(group, number)
        await until(lambda: sum(map(len, done.values())) == 60)
    assert done == {group: list(range(at, 60, 6)) for at, group in enumerate("abcdef")}
    parts = (await mq.describe("parted"))["parts"]
    assert sum(part["messages"] > 0 for part in parts) > 1
    assert all(part["messages"] % 10 == 0 for part in parts), "no group is in two"
