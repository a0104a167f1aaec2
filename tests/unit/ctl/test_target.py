"""Which broker a command uses: the first source that names one decides, and a context's token is sent to no other broker."""

from pathlib import Path
from typing import Any

import pytest

from toymq_py.errors import ConfigError
from toymqctl.contexts import Context, Contexts, store
from toymqctl.target import Target

PROD = Context("toymq://prod", token="prod-token", http_url="http://prod:1")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    store(tmp_path / "toymq" / "contexts.json", Contexts({"prod": PROD, "test": Context("toymq://test")}, "prod"))
    return {"XDG_CONFIG_HOME": str(tmp_path)}


@pytest.mark.parametrize(
    ("given", "more", "host", "token"),
    [
        ({}, {}, "prod", "prod-token"),
        ({}, {"TOYMQ_CONTEXT": "test"}, "test", None),
        ({"context": "test"}, {"TOYMQ_CONTEXT": "prod"}, "test", None),
        ({"url_of_environment": "toymq://e"}, {"TOYMQ_CONTEXT": "prod"}, "e", None),
        ({"url_of_environment": "toymq://t@e"}, {}, "e", "t"),
        ({"url_of_environment": "toymq://e", "context": "prod"}, {}, "prod", "prod-token"),
        ({"url": "toymq://u", "url_of_environment": None}, {}, "u", None),
        ({"token": "mine"}, {}, "prod", "mine"),
    ],
    ids=str,
)
def test_the_first_that_is_there_decides_alone(
    environment: dict[str, str], given: dict[str, Any], more: dict[str, str], host: str, token: str | None
) -> None:
    broker = Target(**given, environment=environment | more).broker()
    assert (broker.address.host, broker.address.token) == (host, token)
    assert broker.http_url == ("http://prod:1" if host == "prod" else None), "the gateway goes with the context"


def test_without_anything_it_is_the_default(tmp_path: Path) -> None:
    assert str(Target(environment={"XDG_CONFIG_HOME": str(tmp_path)}).broker().address) == "127.0.0.1:6789"


def test_a_context_that_is_missing_is_said(environment: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="no context 'prd'"):
        Target(environment=environment | {"TOYMQ_CONTEXT": "prd"}).broker()


def test_a_damaged_file_does_not_stop_a_command_with_a_url(tmp_path: Path) -> None:
    (tmp_path / "toymq").mkdir()
    (tmp_path / "toymq" / "contexts.json").write_text("{")
    assert Target(url="toymq://u", environment={"XDG_CONFIG_HOME": str(tmp_path)}).broker().address.host == "u"


def test_a_token_file_wins_over_the_contexts_token(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("filed\n")
    assert Target(token_file=str(tmp_path / "token"), environment=environment).broker().address.token == "filed"
