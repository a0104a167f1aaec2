"""The broker's files beside the topics."""

from toymq_py.replication import paths
from toymq_py.storage.offline.beside import BESIDE


def test_each_is_copied_to_the_other_nodes_of_a_cluster() -> None:
    assert [file.name for file in BESIDE] == ["webhooks.json", "alerts.json", "amqp.json", "partitions.json", "moves.json"]
    for file in BESIDE:
        assert paths.is_file(file.name), file.name


def test_what_holds_secrets_is_private() -> None:
    assert {file.name for file in BESIDE if file.private} == {"webhooks.json", "alerts.json"}
