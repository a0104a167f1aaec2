"""A data directory with several sealed segments, one of which can get a flipped bit."""

from pathlib import Path

from tests.support.link_rig import LeaderRig

TOPIC = "topics/jobs"
SEGMENT_BYTES = 4096


async def directory_with_segments(root: Path, messages: int = 40) -> list[str]:
    """Publish until there are several segments. Returns: their paths below the directory, the active one last."""
    async with LeaderRig(root, segment_bytes=SEGMENT_BYTES).serving() as rig:
        for number in range(messages):
            await rig.publish("jobs", b"%d" % number * 200)
    return segments_of(root)


def segments_of(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in (root / TOPIC).glob("*.log"))


def flip_bit(root: Path, path: str, position: int = 700) -> None:
    with (root / path).open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))
