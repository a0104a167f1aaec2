"""The file of contexts: private, replaced as a whole, and never guessed at when it is damaged."""

import json
import os
import stat
from pathlib import Path

import pytest

from toymq_py.errors import ConfigError
from toymqctl.contexts import Context, Contexts, check_context_name, load, path_of_contexts, store

PROD = Context("toymqs://mq.example.com", token="s3cret", tls_ca="/ca.pem")


def test_what_was_stored_is_loaded_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "made" / "toymq" / "contexts.json"
    assert load(path) == Contexts()
    os.umask(os.umask(0))  # whatever the umask is
    store(path, Contexts({"prod": PROD, "here": Context("toymq://127.0.0.1")}, "prod"))
    assert load(path) == Contexts({"prod": PROD, "here": Context("toymq://127.0.0.1")}, "prod")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0
    assert list(path.parent.iterdir()) == [path], "no temporary file is left"


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    store(path, Contexts({"prod": PROD}))
    path.chmod(0o640)
    with pytest.raises(ConfigError, match=r"other users can read it \(mode 640\): chmod 600"):
        load(path)
    store(path, Contexts({"prod": PROD}))
    assert load(path).by_name, "it is replaced by a private one"


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"form": 1}', '{"form": 1, "current": null, "contexts": {"a": 1}}',
     '{"form": 1, "current": null, "contexts": []}', '{"form": 1, "current": null, "contexts": {"a": {}}}', b"\xff"],
    ids=repr,
)  # fmt: skip
def test_a_damaged_file_is_said(tmp_path: Path, text: str | bytes) -> None:
    path = tmp_path / "contexts.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=r"cannot be read .*: mend it, or remove it"):
        load(path)


def test_a_newer_form_is_refused_and_an_unknown_member_is_not(tmp_path: Path) -> None:
    path = tmp_path / "contexts.json"
    found = {"form": 1, "current": "gone", "contexts": {"a": {"url": "toymq://a", "color": "red"}}}
    path.write_text(json.dumps(found))
    path.chmod(0o600)
    assert load(path) == Contexts({"a": Context("toymq://a")}, None)
    path.write_text(json.dumps(found | {"form": 2}))
    with pytest.raises(ConfigError, match="is of another version of toymqctl"):
        load(path)


def test_no_text_has_the_token() -> None:
    assert "s3cret" not in repr(PROD) + repr(Contexts({"prod": PROD}))
    with pytest.raises(ConfigError, match="a token in --url shows in the process list") as caught:
        Context("toymq://s3cret@a")
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match="invalid token") as caught:
        Context("toymq://a", token="s3 cret")
    assert "cret" not in str(caught.value)


def test_a_context_that_is_missing_names_those_that_are_there() -> None:
    says = r"^no context 'prd': there are here, prod; `toymqctl context add prd --url URL` makes it$"
    with pytest.raises(ConfigError, match=says):
        Contexts({"prod": PROD, "here": PROD}).find("prd")
    with pytest.raises(ConfigError, match="there are none"):
        Contexts().find("prod")
    for name in ("", "-", ".a", "a b", "x" * 65):
        with pytest.raises(ConfigError, match="invalid context"):
            check_context_name(name)


def test_the_path_follows_xdg() -> None:
    assert path_of_contexts({"XDG_CONFIG_HOME": "/x"}) == Path("/x/toymq/contexts.json")
    assert path_of_contexts({}) == Path.home() / ".config/toymq/contexts.json"
