"""``toymqctl create``."""

from click.testing import CliRunner

from tests.support.ctl import Ctl, ok, refused, values
from toymqctl.cli import main as toymqctl
from toymqctl.settings import SETTINGS


def test_the_help_names_the_settings_and_the_group() -> None:
    said = " ".join(ok(CliRunner().invoke(toymqctl, ["create", "--help"])).split())
    assert f"Settings: {', '.join(SETTINGS)}. In a cluster with groups group=NAME says which one gets the topic." in said
    assert "toymqctl create orders group=b " in said


def test_create_and_config_with_units(ctl: Ctl) -> None:
    words = ("visibility=2m", "retain_acked_for=1500ms", "dedupe_keys=7")
    for said in ("is made", "was there already"):
        assert ok(ctl("create", "arranged", *words)) == f"arranged {said}\n"
    assert values(ctl("config", "arranged", "--json")) == [{"visibility": 120_000, "retain_acked_for": 1500, "dedupe_keys": 7}]
    assert sorted(ok(ctl("config", "arranged")).split()) == sorted(words)
    assert ok(ctl("config", "arranged", "visibility=default", "dedupe_keys=default", "retain_acked_for=default")) == (
        "arranged has no settings of its own: the broker's defaults hold\n"
    )
    text = "EXISTS: arranged exists with visibility=default, not 1s: config changes it\n"
    refused(ctl("create", "arranged", "visibility=1s"), 1, text)
    refused(ctl("config", "arranged", "colour=red"), 1, "colour is not a topic setting; there are")
    refused(ctl("config", "arranged", "visibility=soon"), 2, "invalid duration 'soon': write 250ms")
    refused(ctl("config", "arranged", "visibility"), 2, "invalid setting 'visibility': write NAME=VALUE, for example")
    refused(ctl("config", "arranged", "ttl=1s", "ttl=2s"), 2, "ttl is given twice: give it once")
    refused(ctl("config", "nothing"), 1, "NO_SUCH_TOPIC")
