"""`toymqctl` and tokens: sent, and never shown."""

import socket
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.broker_process import BrokerProcess
from tests.support.ctl import refused
from toymqctl.cli import main as toymqctl

SECRET = "a-secret-token"


def test_a_token_from_environment_or_file_never_shows(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(SECRET + "\n")
    url = f"127.0.0.1:{broker.port}"
    for arguments, env in (
        (["--token-file", str(path)], {"TOYMQ_TOKEN": "another"}),
        ([], {"TOYMQ_TOKEN": SECRET}),
        ([], {"TOYMQ_URL": f"toymq://{SECRET}@{url}"}),
    ):
        named = [] if "TOYMQ_URL" in env else ["--url", url]
        for command, code in (["ping"], 0), (["describe", "nothing"], 1), (["--help"], 0), (["sub"], 2):
            result = CliRunner().invoke(toymqctl, [*named, *arguments, *command], env=env)
            assert result.exit_code == code, result.output
            assert SECRET not in result.output


def test_a_token_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-file\n")
    for arguments, env, token in (
        (["--token-file", str(path)], {"TOYMQ_TOKEN": "from-environment"}, b"from-file"),
        ([], {"TOYMQ_TOKEN": "from-environment"}, b"from-environment"),
    ):
        with socket.create_server(("127.0.0.1", 0)) as server:
            said: list[bytes] = []

            def serve(server: socket.socket = server, said: list[bytes] = said) -> None:
                connection, _ = server.accept()
                with connection:
                    said.append(connection.recv(65536))
                    connection.sendall(b"ERR AUTH_FAILED no\n")

            thread = threading.Thread(target=serve)
            thread.start()
            result = CliRunner().invoke(
                toymqctl, ["--url", f"127.0.0.1:{server.getsockname()[1]}", *arguments, "ping"], env=env
            )
            thread.join()
        assert b"auth=" + token + b" " in said[0]
        assert result.exit_code == 1
        assert token.decode() not in result.output


@pytest.mark.parametrize(
    ("arguments", "env", "text"),
    [
        (["--token", SECRET], {}, "shows in the process list: use TOYMQ_TOKEN or --token-file"),
        (["--url", f"toymq://{SECRET}@h"], {}, "shows in the process list"),
        ([], {"TOYMQ_TOKEN": SECRET + " x"}, "invalid token in TOYMQ_TOKEN: write one word of printable ASCII"),
    ],
)
def test_a_token_in_the_wrong_place_is_refused(arguments: list[str], env: dict[str, str], text: str) -> None:
    result = CliRunner().invoke(toymqctl, [*arguments, "ping"], env=env)
    refused(result, 2, text)
    assert SECRET not in result.output
