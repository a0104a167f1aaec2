"""``make celery-demo``: 10,000 tasks of Celery, ``kill -9`` of broker and workers in turn, and what was done."""

import sys
import tempfile
from pathlib import Path

import click

from tests.support.broker_process import BrokerProcess
from tests.support.celery_tasks import make_app, sender, worker
from tests.support.framework_rig import do_all_under_kills, done, lines_said
from tests.support.ports import reserved
from toymq_py.clock import SystemClock

TASKS, KILLS, WITHIN_S = 10_000, 10, 300


def main() -> int:
    with reserved() as port, tempfile.TemporaryDirectory() as directory:
        said = Path(directory) / "said"
        said.mkdir()
        with (
            BrokerProcess(Path(directory) / "data", "--amqp", f"127.0.0.1:{port}") as broker,
            worker(broker, said) as workers,
        ):
            click.echo(f"{TASKS:,} tasks, {KILLS} kills of broker and workers in turn")
            began, lost = SystemClock.monotonic(), ""
            try:
                send = sender(make_app(f"{broker.amqp}//").tasks)
                do_all_under_kills(broker, workers, send, said, kills=KILLS, count=TASKS, within_s=WITHIN_S)
            except AssertionError as error:
                lost = str(error)
            runs = len(lines_said(said))
            count, seconds = len(done(said)), SystemClock.monotonic() - began
    if lost:
        click.echo(lost)
    click.echo(f"done {count:,} in {seconds:.0f} s, not done {TASKS - count:,}, run more than once {runs - count:,}")
    return 1 if lost or count != TASKS else 0


if __name__ == "__main__":
    sys.exit(main())
