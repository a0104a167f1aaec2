"""Every file that a broker writes is replicated, or listed here as the node's own."""

import re

import pytest

from tests.support.broker_process import ROOT
from toymq_py.data_directory import DELETED_PREFIX
from toymq_py.names import NAME_BYTES_MAX, is_topic_name
from toymq_py.replication.paths import PATH_BYTES_MAX, is_deleted, is_directory, is_file, is_rename, is_topic_directory
from toymq_py.storage.segment import BASE_ID_MAX, removed_name, segment_name

OWN = {"offsets.json.tmp", "topics.restoring", "earlier", "backup.json", "LOCK", "toymq.sock", "workers.json",
       "has-settings", "unclean-ends", "topics-mounted", "+mounted"}  # fmt: skip
"""Each replica has its own, or only commands for a stopped broker's directory make it, or (workers) no cluster has it."""


def test_every_name_of_the_storage_layer_is_shared_or_known_not_to_be() -> None:
    named = re.compile(r'^(?:[A-Z]+_)?NAME = "([^"]+)"', re.MULTILINE)
    found = {name for path in (ROOT / "toymq_py/storage").rglob("*.py") for name in named.findall(path.read_text())}
    assert len(found) > 10
    shared = {name for name in found if is_file(f"topics/t/{name}") or is_file(name)}
    assert found - shared <= OWN
    assert not shared & OWN


@pytest.mark.parametrize(
    "name",
    [segment_name(0), segment_name(BASE_ID_MAX), f"{7:020d}.idx", f"{segment_name(7)}.foreign", removed_name((3, BASE_ID_MAX))],
)
def test_segments_and_what_belongs_to_them_are_shared(name: str) -> None:
    for directory in ("t", "t.dlq", f"{DELETED_PREFIX}17"):
        assert is_file(f"topics/{directory}/{name}")


@pytest.mark.parametrize(
    "path",
    ["", "LOCK", "replica.json", "topics", "topics/t", "topics/t/offsets.json.tmp", "topics/t/next-1.tmp", "spool/1", "./LOCK",
     "replaced/3/topics/t/offsets.json", "topics//offsets.json", "topics/./offsets.json", "topics/../webhooks.json",
     "topics/.hidden/offsets.json", "topics/t/1.log", "topics/t/x/offsets.json", "webhooks.json.tmp", "webhooks.json\n"],
)  # fmt: skip
def test_what_is_a_replicas_own_or_no_file_is_not_shared(path: str) -> None:
    assert not is_file(path)


def test_a_topics_directory_is_shared_if_a_topic_may_have_the_name() -> None:
    longest = "a" * NAME_BYTES_MAX
    for name in ("a", "a.b", longest, f"{longest}.dlq", f"{longest}a", "-a", ".a", "a/b", ""):
        assert is_topic_directory(f"topics/{name}") == is_topic_name(name), name
        assert is_directory(f"topics/{name}") == is_topic_name(name), name
    assert len(f"topics/{'a' * NAME_BYTES_MAX}.dlq/{removed_name((0, 0))}") <= PATH_BYTES_MAX
    assert is_directory("")
    assert is_directory("topics")
    assert not is_directory("spool")
    assert is_deleted("topics/.deleted-0")
    assert not is_deleted("topics/deleted-0")


def test_a_file_is_renamed_within_its_directory_and_a_topic_only_to_be_removed() -> None:
    assert is_rename("topics/t/offsets.json", "topics/t/offsets.json.prev")
    assert is_rename("topics/t", "topics/.deleted-4")
    assert not is_rename("topics/t/offsets.json", "topics/u/offsets.json")
    assert not is_rename("topics/t", "topics/u")
    assert not is_rename("topics/t/offsets.json", "topics/.deleted-4")
    assert not is_rename("topics", "topics/.deleted-4")
