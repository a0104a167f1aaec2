"""``topic.json``. Contract: storage.md, "Layout"; delivery.md, "Per-topic settings"."""

import pytest

from tests.support.logs import PATH, disk_with
from toymq_py.config.topic_settings import TopicSettings
from toymq_py.errors import DamagedData
from toymq_py.storage import topic_settings
from toymq_py.storage.topic_settings import LoadedSettings


def test_settings_survive_a_power_cut_in_a_directory_made_for_them() -> None:
    disk = disk_with({})
    settings = TopicSettings(max_attempts=7, ttl=5000)
    topic_settings.store(disk, "/data/topics/new", settings)
    assert topic_settings.load(disk.crash(), "/data/topics/new") == LoadedSettings(settings)


def test_the_defaults_have_no_file() -> None:
    disk = disk_with({})
    assert topic_settings.load(disk, PATH) == LoadedSettings(TopicSettings())
    topic_settings.store(disk, PATH, TopicSettings(max_attempts=7))
    topic_settings.store(disk, PATH, TopicSettings())
    assert f"{PATH}/topic.json" not in disk.crash().snapshot()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"max_attempts": -1}', b'{"unknown": 1}', b"\xff"])
def test_a_file_that_makes_no_sense_is_named(data: bytes) -> None:
    disk = disk_with({})
    file = disk.open(f"{PATH}/topic.json", create=True)
    file.pwrite(data or b" ", 0)
    found = topic_settings.load(disk, PATH)
    assert found.settings == TopicSettings()
    assert found.problem is not None
    assert found.problem.startswith("topic.json: ")


@pytest.mark.parametrize(("data", "text"), [(b"\xff", "it is not UTF-8"), (b"[" * 100_000, "it is nested too deeply")])
def test_no_noise_of_a_decoder_is_told(data: bytes, text: str) -> None:
    with pytest.raises(DamagedData, match=f"^the settings file is not JSON: {text}$"):
        topic_settings.parse(data, "t")


def test_the_settings_of_another_topic_are_not_taken() -> None:
    """Found: when two topics' files were exchanged, the limits of a cache topic dropped messages that another topic was to
    keep."""
    disk = disk_with({})
    topic_settings.store(disk, "/data/topics/cache", TopicSettings(retain_max_bytes=1))
    data = disk.read_file("/data/topics/cache/topic.json")
    assert topic_settings.parse(data, "cache") == LoadedSettings(TopicSettings(retain_max_bytes=1))
    with pytest.raises(DamagedData, match="these are the settings of topic 'cache'"):
        topic_settings.parse(data, "money")


def test_a_flipped_digit_is_damage() -> None:
    """Found: a limit of 900,000 bytes became one of 100,000, and unacked messages were dropped without a warning."""
    disk = disk_with({})
    topic_settings.store(disk, PATH, TopicSettings(retain_max_bytes=900_000))
    data = disk.read_file(f"{PATH}/topic.json")
    assert topic_settings.parse(data, "t") == LoadedSettings(TopicSettings(retain_max_bytes=900_000))
    with pytest.raises(DamagedData, match="checksum of the settings does not fit"):
        topic_settings.parse(data.replace(b"900000", b"100000"), "t")
    older = b'{\n  "retain_max_bytes": 900000\n}\n'
    assert topic_settings.parse(older, "t") == LoadedSettings(TopicSettings(retain_max_bytes=900_000))
