"""Files that an operator names: each mistake is one error that names the file, and only a bounded part is read."""

import os
import threading
from pathlib import Path

import pytest

from toymq_py.errors import ConfigError
from toymq_py.text_files import BYTES_MAX, parse_toml, read_bounded, read_text


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes("ä\n".encode() + b"x" * (BYTES_MAX - 3))
    assert read_text(str(path), "the file")[:3] == "ä\nx"


def test_a_pipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_text, args=("secret",))
    writer.start()
    assert read_text(str(path), "the token in") == "secret"
    writer.join()


def test_an_endless_file_is_refused() -> None:
    """Found: `toymqctl --token-file /dev/zero` took all memory."""
    with pytest.raises(ConfigError, match=r"^the token in /dev/zero has more than 16777216 bytes: is it the right file?"):
        read_text("/dev/zero", "the token in")
    with Path("/dev/zero").open("rb") as file, pytest.raises(ConfigError, match="<stdin> has more than"):
        read_bounded(file, "<stdin>")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^cannot read the key /not/there: No such file or directory$"):
        read_text("/not/there", "the key")
    path = tmp_path / "f"
    path.write_bytes(b"abc\xff")
    with pytest.raises(ConfigError, match=f"^the key {path} is not UTF-8 at byte 3: save it as UTF-8$"):
        read_text(str(path), "the key")


@pytest.mark.parametrize(
    ("text", "why"),
    [("a =", "Invalid value"), ("a = " + "[" * 100_000, "maximum recursion depth"), ("a = " + "9" * 5000, "Exceeds the limit")],
)
def test_toml_that_cannot_be_parsed_is_named(text: str, why: str) -> None:
    """Found: deep nesting and long numbers ended in a traceback."""
    with pytest.raises(ConfigError, match=f"^x.toml is not TOML: {why}") as caught:
        parse_toml(text, "x.toml")
    assert len(str(caught.value)) < 250
    assert parse_toml("a = [[1]]", "x") == {"a": [[1]]}
