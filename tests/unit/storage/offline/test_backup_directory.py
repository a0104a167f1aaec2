"""The completion mark of a backup. ADR 0026."""

import pytest

from tests.support.backups import BACK, TO, broker, do_backup
from toymq_py.errors import DataDirectoryError
from toymq_py.storage.offline.restore import restore


@pytest.mark.parametrize("mark", [b"", b"[]", b"{}", b'{"version": 2, "began_ns": 1, "finished": true}'])
def test_a_mark_that_makes_no_sense_is_named(mark: bytes) -> None:
    rig = broker()
    do_backup(rig)
    file = rig.disk.open(f"{TO}/backup.json")
    file.truncate(0)
    file.pwrite(mark, 0)
    file.close()
    with pytest.raises(DataDirectoryError, match=r"is damaged|version 2"):
        restore(rig.disk, TO, BACK, pid=3)
