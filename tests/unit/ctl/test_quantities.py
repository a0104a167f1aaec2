"""Parameter types: ids, and names completed from the broker."""

from datetime import UTC, datetime

import click
import pytest
from click.testing import CliRunner

from toymqctl.cli import main
from toymqctl.quantities import POSITION, SETTING, Ids


def test_ids_are_ranges() -> None:
    assert Ids().convert("3-9,12", None, None) == ((3, 9), (12, 12))
    with pytest.raises(click.BadParameter):
        Ids().convert("9-3", None, None)


def test_names_of_settings_are_completed_with_an_equals_sign() -> None:
    context = click.Context(click.Command("create"))
    completed = [item.value for item in SETTING.shell_complete(context, click.Argument(["settings"]), "retain_max")]
    assert completed == ["retain_max_age=", "retain_max_bytes="]


def test_without_a_broker_no_name_is_completed_and_nothing_is_printed() -> None:
    environment = {"_TOYMQCTL_COMPLETE": "bash_complete", "COMP_WORDS": "toymqctl describe ", "COMP_CWORD": "2"}
    result = CliRunner().invoke(main, [], env={**environment, "TOYMQ_URL": "127.0.0.1:1"}, prog_name="toymqctl")
    assert result.output.strip() == ""


def test_a_position_may_be_a_time_of_the_calendar_or_a_while_ago() -> None:
    for text in ("@2026-11-30T00:50:00Z", "@2026-11-30T01:50:00+01:00", "@1795999800000"):
        assert str(POSITION.convert(text, None, None)) == "@1795999800000"
    before_ms = datetime.now(UTC).timestamp() * 1000
    ago = POSITION.convert("@-5m", None, None)
    assert ago.kind == "time"
    assert before_ms - 1 <= ago.value + 300_000 <= datetime.now(UTC).timestamp() * 1000
    for word in ("yesterday", "@soon", "2026-11-30"):
        with pytest.raises(click.BadParameter, match="earliest, latest, a message id or a time, @-5m, @2026-11-30T00:50:00Z"):
            POSITION.convert(word, None, None)
    for wrong in ("@soon", "@-soon", "@2000-01-01", "@"):
        with pytest.raises(click.BadParameter):
            POSITION.convert(wrong, None, None)
