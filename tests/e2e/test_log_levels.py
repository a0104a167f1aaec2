"""``--log-level`` and ``--log-format`` of a real broker, and what SIGHUP changes while it runs."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.broker_process import COMMAND, TIMEOUT_S, Wire, environment


@contextmanager
def serving(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield the process, whose stderr is read line by line, and its port."""
    command = [*COMMAND, "serve", "--data-dir", str(tmp_path / "d"), "--listen", "127.0.0.1:0", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(), stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, int(process.stdout.readline().split()[1].rpartition(":")[2])
        finally:
            process.kill()


def line_with(process: subprocess.Popen[str], text: str) -> str:
    """Return the next line that contains the text; earlier ones are skipped."""
    assert process.stderr is not None
    while text not in (line := process.stderr.readline()):
        assert line, f"the broker ended without saying {text!r}"
    return line


def test_levels_change_while_it_runs(tmp_path: Path) -> None:
    config = tmp_path / "toymq.toml"
    config.write_text("min_free_bytes = 0\n")
    with serving(tmp_path, "--config", str(config)) as (process, port):
        wire = Wire(port)
        assert wire.ask(b"HELLO 1 auth=s3cret\n").startswith(b"HELLO")
        config.write_text('log_level = "info,wire=debug"\n')
        process.send_signal(signal.SIGHUP)
        line_with(process, "the log levels were read again")
        assert wire.ask(b"PING\n") == b"PONG"
        assert "toymq_py.wire: 1 < PING" in line_with(process, "toymq_py.wire")
        config.write_text('log_level = "loud"\n')
        process.send_signal(signal.SIGHUP)
        refused = line_with(process, "read before stay")
        assert f"{config}: log_level: 'loud' is not a level: debug, info, warning, error; the log levels that were" in refused
        assert wire.ask(b"PING\n") == b"PONG"
        line_with(process, "toymq_py.wire: 1 < PING")
        config.write_text("")
        process.send_signal(signal.SIGHUP)
        line_with(process, "the log levels were read again")
        assert wire.ask(b"PING\n") == b"PONG"
        wire.close()
        process.terminate()
        _, rest = process.communicate(timeout=TIMEOUT_S)
        assert "toymq_py.wire" not in rest, "the default holds again"


def test_the_command_line_goes_before_the_file(tmp_path: Path) -> None:
    config = tmp_path / "toymq.toml"
    config.write_text('log_level = "wire=debug"\n')
    with serving(tmp_path, "--config", str(config), "--log-level", "info") as (process, port):
        process.send_signal(signal.SIGHUP)
        line_with(process, "the log levels were read again")
        with Wire(port) as wire:
            assert wire.ask(b"PING\n") == b"PONG"
        process.terminate()
        assert process.communicate(timeout=TIMEOUT_S)[1] == ""


def test_json(tmp_path: Path) -> None:
    with serving(tmp_path, "--log-format", "json", "--fsync", "never", "--log-level", "wire=debug") as (process, port):
        with Wire(port) as wire:
            assert wire.ask(b"PING\n") == b"PONG"
        warning = json.loads(line_with(process, "--fsync never"))
        assert (warning["level"], warning["logger"]) == ("warning", "toymq_py.daemon")
        frame = json.loads(line_with(process, "< PING"))
        assert (frame["session"], frame["message"], frame["level"]) == (1, "1 < PING", "debug")
