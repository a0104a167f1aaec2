"""Invalid options of ``connect`` are refused."""

import ssl

import pytest

import toymq
from toymq_py.errors import BadArgument, ConfigError


@pytest.mark.parametrize(
    "options",
    [
        {"backoff_min_s": 0}, {"backoff_min_s": 2, "backoff_max_s": 1}, {"timeout_s": 0}, {"connect_timeout_s": -1},
        {"wait_s": -1}, {"timeout_s": float("nan")}, {"urls": []}, {"urls": "http://x"}, {"ssl": ssl.create_default_context()},
    ],
    ids=lambda options: ",".join(f"{name}={'one' if name == 'ssl' else value}" for name, value in options.items()),
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        toymq.connect(**options)  # type: ignore[arg-type]


def test_a_name_that_cannot_be_said() -> None:
    with pytest.raises(BadArgument):
        toymq.connect(name="two words")
    with pytest.raises(BadArgument) as caught:
        toymq.connect("toymq://s3cret%20token@host")
    assert "s3cret" not in str(caught.value)
