"""The object ``deleted``, which marks a topic as deleted: its content, and which topics of a bucket count as deleted by it.

An unreadable object, such as a stray one, deletes nothing: its topic counts as existing. Broker versions up to 2026-11-28 wrote
an empty object, so one that an interrupted deletion of theirs left cannot be told from a stray one (ADR 0193).
"""

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json
from toymq_py.tier.bucket import Bucket
from toymq_py.tier.keys import Holding, Place, deleted_key, holdings


def encode(place: Place, at_ns: int) -> bytes:
    return checked_json.encode("deleted", {"topic": place.topic, "incarnation": place.incarnation, "ns": at_ns})


def decode(data: bytes, place: Place) -> int:
    """Decode the time when a topic was deleted. Raises: DamagedData, also when the object names another topic."""
    found = checked_json.decode("deleted", data)
    named = found.get("topic"), found.get("incarnation")
    if named != place:
        raise DamagedData(f"it names topic {named[0]}, incarnation {named[1]}")
    (at_ns,) = checked_json.numbers([found.get("ns")])
    return at_ns


def list_holdings(bucket: Bucket, folder: str = "") -> dict[Place, Holding]:
    """List the content of a bucket, or of a folder of it, by topic; topics that count as deleted are marked. Raises:
    BucketError."""
    found = holdings(bucket.keys(folder))
    for place, holding in found.items():
        if not holding.deleted:
            continue
        data = bucket.get(deleted_key(place))
        if data is None:  # it ended meanwhile: this object goes last
            continue
        try:
            holding.deleted_ns = decode(data, place)
        except DamagedData as error:
            holding.deleted = False
            holding.bad_deletion = f"it has {len(data)} bytes" if not data else str(error)
    return found
