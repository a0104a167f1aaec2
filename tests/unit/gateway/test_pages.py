"""The dashboard without a browser: which constructs its files may contain, and that all they refer to exists."""

import random
import re
from itertools import product
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.http_rig import gateway
from tests.support.sim_disk import SimDisk
from toymq_py.gateway import app, pages
from toymq_py.setting_units import SETTINGS

STATIC = Path(pages.__file__).parent / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))
HTML = (STATIC / "index.html").read_text()
STYLE = (STATIC / "style.css").read_text()
TEXT_CONTRAST = 4.5
CONTROL_CONTRAST = 3.0
"""WCAG 2 AA: text, and the edges of controls."""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_text_becomes_text_and_nothing_else(script: Path) -> None:
    """Payloads, keys and headers are untrusted: no script may contain a construct that parses markup or runs text."""
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|srcdoc"
    assert re.findall(rf"{markup}|\beval\b|new Function", script.read_text()) == []


@pytest.mark.parametrize("file", [*SCRIPTS, STATIC / "style.css", STATIC / "index.html"], ids=lambda path: path.name)
def test_nothing_is_asked_of_other_sites(file: Path) -> None:
    urls = re.findall(r"(?:https?:)?//[a-z][\w.-]+\.[a-z]+[^\s\"'`]*|@import|url\(", file.read_text())
    assert [url for url in urls if "www.w3.org/2000/svg" not in url] == []


def test_the_page_works_under_its_policy() -> None:
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=|javascript:", HTML) == []
    assert "unsafe" not in pages.CONTENT_SECURITY_POLICY


def test_every_part_of_the_page_that_a_script_names_is_there() -> None:
    named = set(re.findall(r'(?:getElementById|\bpart)\("([\w-]+)"\)', "".join(path.read_text() for path in SCRIPTS)))
    assert {"main", "banners", "toasts"} <= named
    assert named <= set(re.findall(r'\bid="([\w-]+)"', HTML))


async def test_every_file_is_served_and_everything_that_is_named_is_a_file() -> None:
    async with gateway("/data/d", fs=SimDisk(random.Random(1))) as rig:
        wanted = {"/": "text/html; charset=utf-8"}
        media = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
        for path in re.findall(r'(?:href|src)="(/static/[^"]+)"', HTML):
            wanted[path] = media[Path(path).suffix]
        for script in SCRIPTS:
            for name in re.findall(r'^import .* from "\./([\w.-]+)";$', script.read_text(), re.MULTILINE):
                wanted[f"/static/{name}"] = media[".js"]
        named = {Path(path).name or pages.INDEX for path in wanted}
        assert {path.name for path in STATIC.iterdir()} == named, "no file is left over"
        for path, kind in wanted.items():
            answer = await rig.ask("GET", path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, kind), path
            assert answer.headers["content-security-policy"] == pages.CONTENT_SECURITY_POLICY


def test_every_call_is_an_operation_of_the_api() -> None:
    script = (STATIC / "api.js").read_text()
    calls = re.findall(r'call\("(\w+)", ["`](/v1/[^"`]+)["`]', script)
    (stream,) = re.findall(r'EVENTS = "([^"]+)"', script)
    known = {(operation.method, re.sub(r"\{\w+\}", "{}", operation.path)) for operation in app.OPERATIONS}
    assert len(calls) > 10
    for method, path in [*calls, ("GET", stream)]:
        assert (method, re.sub(r"\$\{[^}]*\}", "{}", urlsplit(path).path)) in known


def test_the_headers_of_a_publish_are_parameters_of_it() -> None:
    sent = set(re.findall(r'sent\["([\w-]+)"\]', (STATIC / "api.js").read_text())) - {"content-type"}
    (publish,) = (operation for operation in app.OPERATIONS if operation.name == "publish")
    assert sent == {parameter.name.lower() for parameter in publish.parameters if parameter.where == "header"} - {
        "x-header-*", "traceparent",
    }  # fmt: skip


def test_the_form_has_every_setting_of_a_topic() -> None:
    listed = re.findall(r'^  \["(\w+)", (\w+),.*?(\[[^]]*\])?\],$', (STATIC / "settings.js").read_text(), re.MULTILINE)
    assert {name for name, _, _ in listed} == set(SETTINGS)
    for name, kind, words in listed:
        if kind == "WORDS":
            assert tuple(re.findall(r'"([\w-]+)"', words)) == SETTINGS[name]


def _tokens(theme: str) -> dict[str, str]:
    colour = "#[0-9a-f]{6}"
    pairs = re.findall(rf"--([\w-]+): light-dark\(({colour}), ({colour})\);", STYLE)
    return {name: light if theme == "light" else dark for name, light, dark in pairs}


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _contrast(one: str, two: str) -> float:
    low, high = sorted((_luminance(one), _luminance(two)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_its_ground(theme: str) -> None:
    tokens = _tokens(theme)
    grounds = ("ground", "surface", "raised")
    pairs = [*product(("text", "muted", "accent", "bad"), grounds)]
    pairs += [("on-accent", "accent"), ("surface", "bad"), ("ground", "text")]
    pairs += [(tone, f"{tone}-ground") for tone in ("good", "warn", "bad")]
    found = {pair: round(_contrast(tokens[pair[0]], tokens[pair[1]]), 2) for pair in pairs}
    assert {pair: contrast for pair, contrast in found.items() if contrast < TEXT_CONTRAST} == {}
    edges = {tone: _contrast(tokens[tone], tokens["surface"]) for tone in ("control", "in", "mid", "out")}
    assert {tone: contrast for tone, contrast in edges.items() if contrast < CONTROL_CONTRAST} == {}


def test_every_colour_has_a_light_and_a_dark_value() -> None:
    assert re.findall(r": *#[0-9a-f]{3,8}\b", STYLE) == []
