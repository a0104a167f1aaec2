"""Reads of the log over HTTP, which change nothing."""


from tests.support.http_rig import HttpRig, refused


async def test_pages_of_the_log(rig: HttpRig) -> None:
    await rig.publish("t", *map(str, range(5)))
    first = await rig.ask("GET", "/v1/topics/t/log?max=2")
    assert [m["payload"] for m in first.json()["messages"]] == ["0", "1"]
    assert first.headers["content-range"] == "messages 0-1/5"
    rest = (await rig.ask("GET", f"/v1/topics/t/log?from={first.json()['next']}")).json()
    assert ([m["payload"] for m in rest["messages"]], rest["next"], rest["next_id"]) == (["2", "3", "4"], 5, 5)
    end = await rig.ask("GET", "/v1/topics/t/log?from=latest")
    assert (end.json()["messages"], end.json()["next"]) == ([], 5)
    assert "content-range" not in end.headers
    refused(await rig.ask("GET", "/v1/topics/t/log?from=6"), 416, "OUT_OF_RANGE")
    refused(await rig.ask("GET", "/v1/topics/u/log"), 404, "NO_SUCH_TOPIC")
    assert not rig.broker.topics["t"].consumers, "nothing was consumed"
