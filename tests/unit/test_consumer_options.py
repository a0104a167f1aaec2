"""Where a consumer starts. Contract: protocol.md, "SUB"."""

import pytest

from toymq_py.consumer_options import Start
from toymq_py.errors import BadArgument


@pytest.mark.parametrize("text", ["earliest", "latest", "0", "18446744073709551615", "@0", "@1781767800000"])
def test_positions_are_read_and_written(text: str) -> None:
    assert str(Start.parse(text)) == text


@pytest.mark.parametrize("text", ["", "@", "-1", "+1", "1.0", "Earliest", "18446744073709551616", "@99999999999999999", "٣"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(BadArgument):
        Start.parse(text)


def test_a_time_that_was_meant_in_seconds_is_refused_beyond_the_wire() -> None:
    """Found by a trial: toymqctl refused such a time, but the Python clients and HTTP moved the consumer to January 1970."""
    for text, instead in (("@1795410933", "@1795410933000"), ("@2020", "@2020000"), ("@0", "@0000")):
        with pytest.raises(BadArgument, match=f"^{text} is before 2001: write milliseconds, {instead}, or earliest$"):
            Start.parse_checked(text)
    assert Start.parse_checked("@978307200000") == Start("time", 978_307_200_000)
    assert Start.parse_checked("7") == Start("id", 7), "an id is no time"
    assert Start.parse("@2020") == Start("time", 2020), "the wire takes any"
