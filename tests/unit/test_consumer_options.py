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
