"""Makes topics in a bucket without a broker, or from a data directory."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.support.logs import some_frames
from toymq_py.storage import topic_settings
from toymq_py.storage.fs import RealFileSystem
from toymq_py.storage.reader import DirectoryReader
from toymq_py.storage.segment import segment_name
from toymq_py.storage.segment_heads import list_bases
from toymq_py.tier.bucket import Bucket, open_bucket
from toymq_py.tier.keys import Place
from toymq_py.tier.uploads import store_segment

PLACE = Place("t", "0123456789abcdef")


def fill(bucket: Bucket, edges: Sequence[int], place: Place = PLACE) -> list[bytes]:
    """Store segments of consecutive ids, with the given ``edges`` between them. Returns: all frames."""
    frames = []
    for first_id, next_id in pairwise(edges):
        some = some_frames(next_id - first_id, first_id=first_id)
        store_segment(bucket, place, first_id, b"".join(some), next_id)
        frames += some
    return frames


def upload(data_dir: Path, url: str, *, tail: bool) -> None:
    """Copy the segments of a data directory to a bucket, as if they had been sealed; with ``tail`` the active ones, too."""
    fs = RealFileSystem()
    bucket, reader = open_bucket(url, fs), DirectoryReader(str(data_dir))
    for name in reader.topics():
        path = f"{data_dir}/topics/{name}"
        incarnation = topic_settings.load(fs, path).incarnation
        if incarnation is None:  # as the tier does until it has one
            continue
        bases = list_bases(fs, path)
        for first_id, next_id in pairwise([*bases, reader.topic(name).next_id] if tail else bases):
            data = Path(path, segment_name(first_id)).read_bytes()
            written = data.rstrip(b"\0") if next_id > bases[-1] else data
            store_segment(bucket, Place(name, incarnation), first_id, written, next_id)
