"""Durations and settings among the arguments of the clients' methods: seconds, or texts with a unit."""

import pytest

from tests.support.obliging_broker import ObligingBroker
from toymq import arguments, sync
from toymq.arguments import to_ms
from toymq_py.errors import BadArgument
from toymq_py.protocol import Config, Create, Nack, Publish, Pull, Subscribe, Touch

URL = "unix:/in/memory"


def test_numbers_of_settings_are_seconds_and_texts_have_their_unit(broker: ObligingBroker) -> None:
    """Found by a trial: 60 was 60 milliseconds, silently, and "2m" was refused."""
    with sync.connect(URL) as mq:
        mq.create("t", {"visibility": 60, "ttl": "2m", "nack_backoff_min": 0.25, "retain_acked_for": 0})
        mq.config("t", {"visibility": "default", "max_attempts": 3, "when_full": "reject", "retain_max_bytes": "64KiB"})
    assert broker.commands[:2] == [
        Create("t", {
            "visibility": "60000", "ttl": "120000", "nack_backoff_min": "250", "retain_acked_for": "0",
        }),
        Config("t", {"visibility": "default", "max_attempts": "3", "when_full": "reject", "retain_max_bytes": "65536"}),
    ]  # fmt: skip


def test_a_time_may_be_a_text_with_its_unit_everywhere(broker: ObligingBroker) -> None:
    """Found: the quickstart promised this, and only settings accepted it."""
    with sync.connect(URL, timeout_s="10s", connect_timeout_s="500ms", backoff_min_s="1ms", backoff_max_s="2m") as mq:
        assert (mq._options.timeout_s, mq._options.connect_timeout_s, mq._options.backoff_max_s) == (10, 0.5, 120)
        mq.pub("t", b"x", delay="5s", ttl="24h")
        list(mq.pub_many("t", [b"x"], delay="250ms"))
        mq.pull("t", "c", wait="0s", visibility="2m")
        mq.nack("t", "c", [(1, 1)], delay="7d")
        messages = mq.sub("t", "c", visibility="1m")
        first = messages.next("5s")
        first.extend("3s")
        first.nack("1s")
        next(messages.batches(2, "0s"))[0].nack(delay="0s")
        with pytest.raises(ZeroDivisionError), messages.next("5s").process(retry_delay="4s"):
            raise ZeroDivisionError
        assert mq.drain("5s")
    published = [(one.delays_ms, one.ttls_ms) for one in broker.commands if isinstance(one, Publish)]
    assert published == [([5_000], [86_400_000]), ([250], None)]
    assert [one.delay_ms for one in broker.commands if isinstance(one, Nack)] == [604_800_000, 1_000, 0, 4_000]
    leases = [one.visibility_ms for one in broker.commands if isinstance(one, Pull | Subscribe | Touch)]
    assert leases == [120_000, 60_000, 3_000]


def test_the_limits_of_a_setting_are_those_that_the_broker_says(broker: ObligingBroker) -> None:
    """Found: the error for max_attempts -1 said "from 0 to 18446744073709551615", and for "x" "from 0 to 1048576"."""
    with sync.connect(URL) as mq:
        mq.create("t", {"max_attempts": -1, "dedupe_keys": 10**30})
    assert broker.commands[0] == Create("t", {"max_attempts": "-1", "dedupe_keys": str(10**30)})


def test_settings_that_were_read_can_be_said_again() -> None:
    wire = {"visibility": 60_000, "ttl": 250, "max_attempts": 3, "when_full": "reject", "retain_max_bytes": 9}
    read = arguments.settings_in_seconds(wire)
    assert (read["visibility"], read["ttl"]) == (60, 0.25)
    assert arguments.settings(read) == {name: str(value) for name, value in wire.items()}


@pytest.mark.parametrize(("seconds", "ms"), [(None, None), (0, 0), (1.5, 1500), (0.0004, 0), ("5s", 5000), ("0m", 0)])
def test_seconds_become_milliseconds(seconds: float | str | None, ms: int | None) -> None:
    assert to_ms("delay", seconds) == ms


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e12])
def test_what_is_no_duration(seconds: float) -> None:
    with pytest.raises(BadArgument, match="delay is a duration"):
        to_ms("delay", seconds)


@pytest.mark.parametrize(
    ("value", "doubted"),
    [
        (30_000, True), (30_000.0, True), (5000, True), (4000, False), (30, False), ("30000s", False), (36_000, False),
        (30_500, False),
    ],
)
@pytest.mark.parametrize("name", ["visibility", "nack_backoff_max", "retain_max_age"])
def test_a_number_of_seconds_that_looks_like_milliseconds_is_doubted(name: str, value: object, doubted: bool) -> None:
    """Found: ``create("t", {"visibility": 30000})`` was a lease of eight hours, without a warning."""
    if not doubted or name == "retain_max_age":
        assert arguments.settings({name: value})
        return
    with pytest.warns(RuntimeWarning, match=rf"settings\['{name}'\] is \d+ seconds, .* hours: write \"\d+s\" or \"\d+s\""):
        assert arguments.settings({name: value}) == {name: str(int(float(str(value))) * 1000)}


def test_so_is_the_visibility_of_a_lease() -> None:
    assert (arguments.visibility(None), arguments.visibility("30s"), arguments.visibility(30)) == (None, 30_000, 30_000)
    with pytest.warns(RuntimeWarning, match="visibility is 30000 seconds, 8.3 hours"):
        assert arguments.visibility(30_000) == 30_000_000
