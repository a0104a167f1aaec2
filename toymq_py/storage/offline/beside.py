"""The files of the broker that stand beside the topics of a data directory, for commands that go through all of them."""

from toymq_py.storage import alerts_file, amqp_file, moves_file, partitions_file, webhooks_file

BESIDE = (webhooks_file.FILE, alerts_file.FILE, amqp_file.FILE, partitions_file.FILE, moves_file.FILE)
