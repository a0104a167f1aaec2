"""What `toymqctl delete` shows of a topic before it asks for confirmation."""

from typing import cast

import pytest

from toymq import sync
from toymq_py.errors import NoSuchTopic, PlacementUnknown, RequestError
from toymqctl.confirmation import is_half_deleted


class Client:
    def __init__(self, error: RequestError | None) -> None:
        self._error = error

    def describe(self, topic: str) -> dict[str, object]:
        if self._error is not None:
            raise self._error
        return {}


def known(error: RequestError | None) -> bool:
    return is_half_deleted(cast(sync.Client, Client(error)), "t")


def test_a_delete_that_was_interrupted_can_be_completed() -> None:
    """Found: the command was refused before it asked, each time."""
    assert known(PlacementUnknown("t is being deleted, and that was interrupted: repeat DELETE t"))
    assert known(PlacementUnknown("t is being made or deleted; if that was interrupted, repeat the CREATE or DELETE of it"))
    assert [known(error) for error in (None, NoSuchTopic("there is no topic t"))] == [False, False]


def test_what_does_not_answer_is_said_before_anything_is_deleted() -> None:
    with pytest.raises(PlacementUnknown, match=r"^group b does not answer; nothing was done$"):
        known(PlacementUnknown("group b does not answer"))
