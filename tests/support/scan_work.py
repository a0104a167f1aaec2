"""Measures the work of a segment scan: bytes read, and bytes over which checksums were computed."""

import pytest

from tests.support.logs import PATH, disk_with
from toymq_py.storage import salvage
from toymq_py.storage.record import scanning
from toymq_py.storage.scanner import scan_segment
from toymq_py.storage.segment import segment_name


def work_for_each_byte(data: bytes, base_id: int, monkeypatch: pytest.MonkeyPatch) -> float:
    """Scan a segment. Returns: bytes that were looked at for each byte of the segment."""
    disk = disk_with({base_id: data})
    done = 0
    file = type(disk.open(f"{PATH}/{segment_name(base_id)}"))
    pread, crc32 = file.pread, salvage.crc32

    def read(self: object, length: int, offset: int, pread=pread) -> bytes:  # type: ignore[no-untyped-def]
        nonlocal done
        done += length
        return bytes(pread(self, length, offset))

    def checked(data: bytes, *crc: int, crc32=crc32) -> int:  # type: ignore[no-untyped-def]
        nonlocal done
        done += len(data)
        return int(crc32(data, *crc))

    with monkeypatch.context() as patch:
        patch.setattr(file, "pread", read)
        patch.setattr(salvage, "crc32", checked)
        patch.setattr(scanning, "crc32", checked)
        scan_segment(disk, f"{PATH}/{segment_name(base_id)}", base_id)
    return done / len(data)
