"""What the targets of the Makefile run, without running it."""

import os
import shutil
import subprocess

import pytest

from tests.support.broker_process import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")


def recipe(*words: str) -> list[str]:
    """Return the commands of a make target, without running them; the variables of an outer make are removed."""
    command = ["make", "--dry-run", "--no-print-directory", *words]
    own = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=True).stdout.splitlines()


def test_a_second_broker_has_addresses_and_a_directory_of_its_own() -> None:
    """Found: both were fixed, so `make run` could not be used beside another broker."""
    *_, hint, serve = recipe("run", "LISTEN=127.0.0.1:7000", "HTTP=127.0.0.1:7001", "DATA_DIR=./other")
    assert "toymqctl --url 127.0.0.1:7000 pub orders hello" in hint
    assert serve.endswith("serve --data-dir './other' --listen '127.0.0.1:7000' --http '127.0.0.1:7001'")


def test_without_them_it_is_where_the_pages_say() -> None:
    *_, hint, serve = recipe("run")
    assert "toymq: LISTEN=, HTTP= and DATA_DIR= start it elsewhere. When it is ready, in" in hint, "a port may be taken"
    assert "toymqctl pub orders hello" in hint
    assert serve.endswith("serve --data-dir './data' --listen '127.0.0.1:6789' --http '127.0.0.1:7800'")
