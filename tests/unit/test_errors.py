"""The tree of errors: codes are unique, stable words."""

import re

import pytest

from toymq_py import errors
from toymq_py.errors import REQUEST_ERRORS, DirectoryLocked, LocalError, OutOfRange, RequestError, ToymqError

CLASSES = [cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, ToymqError)]


def test_a_code_is_one_word_and_stands_for_one_error() -> None:
    codes = [cls.code for cls in CLASSES if issubclass(cls, RequestError) and cls is not RequestError and "code" in vars(cls)]
    assert sorted(codes) == sorted(REQUEST_ERRORS)
    assert len(codes) == len(set(codes))
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code) for code in codes)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_stands_in_the_tree_and_says_what_it_is(cls: type[ToymqError]) -> None:
    assert cls.__doc__
    assert cls is ToymqError or issubclass(cls, (RequestError, LocalError))
    tree = str(errors.__doc__)
    assert re.search(rf"\b{cls.__name__}\b", tree)
    if issubclass(cls, RequestError) and cls.fatal:
        assert f"{cls.__name__}*" in tree


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((7,), "d is in use by process 7"),
        ((None,), "d is in use by another process"),
        ((7, "toymq://a:1"), "d is in use by process 7, a broker: connect to toymq://a:1 instead"),
        ((7, None, "toymq repair"), "d is in use by process 7, `toymq repair`: try again when that has ended"),
    ],
)
def test_a_locked_directory_names_its_owner(arguments: tuple[int | None], text: str) -> None:
    assert str(DirectoryLocked("d", *arguments)) == text


def test_a_position_out_of_range_begins_with_the_first_id() -> None:
    error = OutOfRange(5, "is the first id")
    assert (str(error), error.first_id) == ("5 is the first id", 5)
