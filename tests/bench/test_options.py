"""Options of the scenarios."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from toymq_bench.options import Address, output


def test_an_address_is_host_and_port() -> None:
    assert Address().convert("::1:6789", None, None) == ("::1", 6789)


@pytest.mark.parametrize("text", ["host", ":1", "host:", "host:0", "host:65536", "host:x"])
def test_an_invalid_address_is_named(text: str) -> None:
    with pytest.raises(click.BadParameter, match=f"invalid address '{text}': write HOST:PORT"):
        Address().convert(text, None, None)


@pytest.mark.parametrize(("file", "code"), [("a.svg", 0), ("a.png", 0), ("a.pdf", 2), ("a", 2)])
def test_a_plot_needs_a_known_format_before_the_run(file: str, code: int, tmp_path: Path) -> None:
    ran = []

    @click.command()
    @output
    def command(picture: Path | None, json_file: Path | None) -> None:
        ran.append(picture)

    result = CliRunner().invoke(command, ["--plot", str(tmp_path / file)])
    assert (result.exit_code, len(ran)) == (code, int(code == 0)), result.output
