"""``alerts.json``: every reader accepts the same file."""

import random

import pytest

from tests.support.sim_disk import SimDisk
from toymq_py.config.alerts import ALERTS_MAX, Alert
from toymq_py.errors import BadArgument, DamagedData
from toymq_py.storage import alerts_file, checked_json

ALERT = Alert("lag", "orders.*", 100, 80, url="https://example.com/", secret="s")


def test_what_was_written_is_loaded_after_a_power_cut() -> None:
    disk = SimDisk(random.Random(1))
    disk.mkdir("/data")
    disk.sync_dir("/")
    assert alerts_file.load(disk, "/data") == {}
    alerts_file.FILE.write(disk, "/data", alerts_file.encode({"one": ALERT}))
    assert alerts_file.load(disk.crash(), "/data") == {"one": ALERT}


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [("one", ["a"], "alert 'one'"), ("one", {"when": "lag"}, "alert 'one'"), ("a b", {"when": "disk"}, "alert 'a b'")],
)
def test_an_alert_that_a_request_could_not_define_is_damage(name: str, fields: object, says: str) -> None:
    with pytest.raises(DamagedData, match=says):
        alerts_file.decode(checked_json.encode("alerts", {name: fields}))


def test_a_flipped_bit_is_damage() -> None:
    data = alerts_file.encode({"one": ALERT})
    for at in range(len(data) - 1):
        with pytest.raises(DamagedData):
            alerts_file.decode(data[:at] + bytes((data[at] ^ 4,)) + data[at + 1 :])


def test_more_than_the_limit_are_not_written() -> None:
    rules = {f"r{number}": ALERT for number in range(ALERTS_MAX)}
    assert alerts_file.decode(alerts_file.encode(rules)) == rules
    with pytest.raises(BadArgument, match=f"limit of {ALERTS_MAX}"):
        alerts_file.encode({**rules, "more": ALERT})
