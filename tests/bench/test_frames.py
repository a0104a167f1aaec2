"""Every frame of a block has its send time."""

import pytest

from toymq_bench.frames import MARK, Template


def test_a_block_is_stamped_in_every_frame() -> None:
    template = Template([MARK + b"-%d" % number for number in range(3)])
    assert template.block(2, 255) == b"0000000000ff-00000000000ff-1"
    with pytest.raises(ValueError, match="one length"):
        Template([b"a", b"bb"])
