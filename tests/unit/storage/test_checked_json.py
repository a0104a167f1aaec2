"""Small JSON files behind a checksum. Contract: storage.md, "offsets.json"."""

import pytest

from toymq_py.errors import DamagedData
from toymq_py.storage import checked_json


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"null", b'{"crc32": "00000000", "state": ', b'{"crc32": "xxxxxxxx", "state": {}}']
)
def test_other_files_are_no_checked_ones(body: bytes) -> None:
    with pytest.raises(DamagedData):
        checked_json.decode("state", body)


@pytest.mark.parametrize("body", [b"[1]", b"{1}", b"1"])
def test_a_checksum_that_fits_does_not_make_it_an_object(body: bytes) -> None:
    data = b'{"crc32": "%08x", "state": %b}\n' % (checked_json.crc32(body), body)
    with pytest.raises(DamagedData):
        checked_json.decode("state", data)


def test_one_kind_is_not_taken_for_another() -> None:
    with pytest.raises(DamagedData):
        checked_json.decode("segment", checked_json.encode("state", {}))
