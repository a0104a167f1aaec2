"""Errors of the Spark connector, besides those of the broker.

    LocalError
    ├─ ConfigError
    │  └─ OptionError        an unknown, misplaced or invalid option, or an invalid schema
    ├─ NoSpark               Spark does not start
    ├─ BadValue              a value is not of its format (``badRows``)
    ├─ DataLoss              records that a query should read are gone (``failOnDataLoss``)
    ├─ RegistryFailed        a schema registry does not answer, or not as one
    ├─ ProtocFailed          the compiler of a registry's Protobuf does not run
    ├─ TooManyKeys           startingOffsets=latestByKey would take too much memory
    └─ ReplayMismatch        a repeated task has other rows: publishing them would lose or double some
       └─ TooLate            another attempt has replaced this one

Spark shows an error of a Python data source by class and text: each text has its remedy.
"""

from toymq_py.errors import ConfigError, LocalError
from toymq_py.storage.id_ranges import record_range


class OptionError(ConfigError):
    """A wrong option or column; the text begins with its name."""


class NoSpark(LocalError):
    """Spark does not start; the text gives the reason where it is known."""


class DataLoss(LocalError):
    """Ids ``first_id`` to ``last_id`` of a topic are gone; ``last_id`` None: all from the first on."""

    def __init__(self, topic: str, first_id: int, last_id: int | None, why: str) -> None:
        gone = f"records from {first_id} on are gone" if last_id is None else record_range(first_id, last_id, "are gone")
        super().__init__(f"topic {topic}: {gone}: {why}")
        self.topic = topic
        self.first_id = first_id
        self.last_id = last_id


class BadValue(LocalError):
    """The value of a record cannot be decoded."""


class RegistryFailed(LocalError):
    """A schema registry failed; the text has its address and what is wrong with the answer."""


class ProtocFailed(LocalError):
    """protoc could not be run; the text has the error of the operating system."""


class TooManyKeys(LocalError):
    """Too many keys for ``startingOffsets=latestByKey``; the text has a query that works with any number of keys."""


class ReplayMismatch(LocalError):
    """A repeated task has other rows than before, so this attempt has published none of them. The option ``skipBatch`` skips
    them."""


class TooLate(ReplayMismatch):
    """Another attempt at the batch has replaced this one. No option helps, or is needed: the other attempt publishes."""
