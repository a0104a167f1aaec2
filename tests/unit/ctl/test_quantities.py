"""Parameter types: ids, and names completed from the broker."""

import click
import pytest
from click.testing import CliRunner

from toymqctl.cli import main
from toymqctl.quantities import SETTING, Ids


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
