"""Go's durations and timestamps, which two dialects use."""

import pytest

from toymq_py.errors import BadArgument
from toymq_py.gateway.dialects import go_duration_ms, rfc3339


@pytest.mark.parametrize(
    ("text", "ms"),
    [("1500ms", 1500), ("2m", 120_000), ("1h30m", 5_400_000), ("1.5s", 1500), (".5s", 500), ("1us", 1), ("0s", 0), ("9µs", 1),
     ("0", 0)],
)  # fmt: skip
def test_durations_of_go(text: str, ms: int) -> None:
    assert go_duration_ms("ttl", text) == ms


@pytest.mark.parametrize("text", ["", "5", "00", "-0", "s", "1d", "-1s", "1s ", "1 s", "1s2", "99999999h", "\u0661s"])
def test_an_invalid_duration_names_its_parameter(text: str) -> None:
    with pytest.raises(BadArgument, match="ttl"):
        go_duration_ms("ttl", text)


def test_time_stamps_of_go() -> None:
    assert rfc3339(1_781_767_800_000_000_001) == "2026-06-18T07:30:00.000000001Z"
