"""What is said of a topic that a command makes: its name may be misspelled."""

from collections.abc import Callable

import click

from toymq_py.errors import NoSuchTopic, RequestError
from toymq_py.names import PARTITION_MARK, is_pattern


def is_new(topic: str, look: Callable[[], object]) -> bool | None:
    """Whether a command that names the topic makes it; None: that is not known.

    Args:
        look: describes the topic. What else it is refused is for the command itself to meet.
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
    """Report on stderr that a command makes the topic."""
    click.echo(f"toymqctl: {topic} was not there and is made now: `toymqctl delete {topic}` removes it", err=True)
