"""Warns when a command creates a topic, since its name may be misspelled."""

from collections.abc import Callable

import click

from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.names import PARTITION_MARK, is_pattern


def is_new(topic: str, look: Callable[[], object]) -> bool | None:
    """Whether a command that names the topic will create it; None if that is not known.

    Args:
        look: describes the topic. Any error except NoSuchTopic is ignored here: the command itself will meet it.
    """
    if is_pattern(topic) or PARTITION_MARK in topic:  # nothing makes a partition but CREATE of its topic
        return False
    try:
        look()
    except NoSuchTopic:
        return True
    except RequestError:
        return None
    return False


def say_made(topic: str) -> None:
    """Say on stderr that a command creates the topic."""
    click.echo(f"toymqctl: {topic} was not there and is made now: `toymqctl delete {topic}` removes it", err=True)
