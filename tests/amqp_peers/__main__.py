"""``make test-amqp-peers``: the integration suites of clients of RabbitMQ, unchanged, against a broker of this checkout.

py-amqp's and kombu's are in their source distributions, which pip fetches in the version that is installed here. pika's is in
its repository alone: ``--pika DIR`` names a checkout, and so does ``--tutorials DIR``. Nothing of theirs is kept. docs/amqp.md
has what they said, and why.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click

from tests.amqp_peers.tutorials import ADDRESS, failures
from tests.support.broker_process import BrokerProcess

PORT = ADDRESS.rpartition(":")[2]
"""pika's suite knows no other."""
PAYLOAD = "32MiB"
"""pika publishes 15 MB at once."""
NO_TLS = "not tls"
"""Their certificates are of an authority whose key is not ours."""
FROM_PYPI = {"amqp": "t/integration/test_rmq.py", "kombu": "t/integration/test_py_amqp.py"}
PIKA = ("blocking_adapter_test.py", "async_adapter_tests.py", "enforce_one_basicget_test.py", "thread_safe_connection_test.py",
        "thread_safe_bounded_queue_test.py")  # fmt: skip
TOOLS = ("pytest", "pytest-rerunfailures", "pytest-timeout", "case", "tornado", "twisted", "gevent")


def suites(directory: Path, python: str, pika: Path | None) -> Iterator[tuple[str, Path, list[str]]]:
    """Name, working directory and files of each suite."""
    for name, file in FROM_PYPI.items():
        fetch = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:")
        run(python, *fetch, f"{name}=={version(name)}", at=directory)
        (archive,) = directory.glob(f"{name}-*.tar.gz")
        with tarfile.open(archive) as found:
            found.extractall(directory, filter="data")
        yield name, directory / archive.name.removesuffix(".tar.gz"), [file]
    if pika is not None:
        yield "pika", pika.absolute(), [f"tests/acceptance/{file}" for file in PIKA]


def run(*command: str, at: Path, **variables: str) -> int:
    return subprocess.run(command, cwd=at, env={**os.environ, **variables}, check=False).returncode


@click.command()
@click.option("--pika", type=click.Path(exists=True, file_okay=False, path_type=Path), help="A checkout of pika.")
@click.option(
    "--tutorials", multiple=True, type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout with RabbitMQ's tutorials; with it no suites.",
)  # fmt: skip
def main(pika: Path | None, tutorials: tuple[Path, ...]) -> None:
    """Run the suites, one after the other; exit 1 when one has failures."""
    failed = []
    for checkout in tutorials:
        for line in failures(checkout):
            click.echo(line)
            failed.append(checkout.name)
    if tutorials:
        click.echo(f"tutorials with failures: {len(failed)}")
        sys.exit(bool(failed))
    with tempfile.TemporaryDirectory() as there:
        directory = Path(there)
        python = str(directory / "venv" / "bin" / "python")
        run(sys.executable, "-m", "venv", "venv", at=directory)
        clients = [f"{name}=={version(name)}" for name in ("amqp", "kombu", "pika")]
        run(python, "-m", "pip", "install", "--quiet", *TOOLS, *clients, at=directory)
        with BrokerProcess(directory / "data", "--amqp", ADDRESS, "--max-payload", PAYLOAD):
            for name, folder, files in suites(directory, python, pika):
                click.echo(f"== {name}")
                pytest = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout", "60", "--tb=line", "-rfE", "-k", NO_TLS)
                if run(python, *pytest, *files, at=folder, RABBITMQ_HOST="127.0.0.1", RABBITMQ_5672_TCP=PORT):
                    failed.append(name)
    click.echo(f"with failures: {', '.join(failed) or 'none'}; docs/amqp.md says which are expected")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
