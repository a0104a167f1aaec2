"""Errors of the Spark connector, on top of those of the broker.

    LocalError
    ├─ ConfigError
    │  └─ OptionError        an option or a schema that is not known, has no meaning here, or makes no sense
    ├─ NoSpark               it does not start
    ├─ DataLoss              records that a query should have read are gone (``failOnDataLoss``)
    └─ ReplayMismatch        a task that is run again has other rows than before: publishing them would lose or double some

Spark shows an error of a Python data source by class and text, so the texts say what to do.
"""

from toymq_py.errors import ConfigError, LocalError


class OptionError(ConfigError):
    """The text begins with the name of the option or column."""


class NoSpark(LocalError):
    """Spark does not start; the text gives the reason where it is known."""


class DataLoss(LocalError):
    """Ids ``first_id`` to ``last_id`` of a topic are gone; ``last_id`` None: their number is unknown."""

    def __init__(self, topic: str, first_id: int, last_id: int | None, why: str) -> None:
        which = f"from {first_id} on" if last_id is None else f"{first_id} to {last_id}"
        super().__init__(f"topic {topic}: records {which} are gone: {why}")
        self.topic = topic
        self.first_id = first_id
        self.last_id = last_id


class ReplayMismatch(LocalError):
    """Nothing of the task's rows was published by this attempt."""
