"""The login of the dashboard: a session cookie for a token."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.http_tokens import bearer, grants, three_tokens
from tests.support.sim_disk import SimDisk
from toymq_py.auth.tokens import Authority
from toymq_py.gateway.access import COOKIE


@pytest.fixture
def authority() -> Authority:
    return three_tokens()


@pytest.fixture
async def rig(authority: Authority) -> AsyncIterator[HttpRig]:
    async with gateway("/data/d", fs=SimDisk(random.Random(1)), authority=authority) as rig:
        yield rig


async def test_the_login_makes_a_cookie_that_no_script_sees(rig: HttpRig) -> None:
    refused(await rig.ask("POST", "/v1/login", json={"token": "guess"}), 401, "AUTH_FAILED")
    refused(await rig.ask("POST", "/v1/login", json={"token": "a b"}), 422, "BAD_ARGUMENT")
    refused(await rig.ask("GET", "/v1/login"), 401, "AUTH_REQUIRED")
    answer = await rig.ask("POST", "/v1/login", json={"token": "operator-token"})
    assert answer.json() == {"required": True, "name": "operator", "admin": True}
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert "operator-token" not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert (await rig.ask("GET", "/v1/login")).json()["name"] == "operator", "the client sends the cookie"
    kept = {"cookie": cookie.partition(";")[0]}
    assert (await rig.ask("DELETE", "/v1/login")).status_code == 204
    refused(await rig.ask("GET", "/v1/login"), 401, "AUTH_REQUIRED")
    refused(await rig.ask("GET", "/v1/login", headers=kept), 401, "AUTH_FAILED")


async def test_a_login_ends_what_was_begun_under_it(rig: HttpRig) -> None:
    """The end of a login ends a stream, an event stream and a poll, without a change of the tokens."""
    assert (await rig.ask("POST", "/v1/topics/orders.1/messages", content=b"x", headers=bearer("billing"))).status_code == 201
    assert (await rig.ask("POST", "/v1/login", json={"token": "billing-token"})).status_code == 200
    assert rig.gateway is not None
    waiting = rig.gateway.waiting
    async with asyncio.TaskGroup() as tasks:
        paths = ("/v1/topics/orders.1/stream?from=earliest", "/v1/events")
        streams = [tasks.create_task(rig.ask("GET", path)) for path in paths]
        poll = tasks.create_task(rig.ask("GET", "/v1/topics/orders.2/messages?consumer=c&wait_s=30"))
        await rig.until_polled("orders.2")
        await rig.until(lambda: len(waiting) == 3)
        assert (await rig.ask("DELETE", "/v1/login")).status_code == 204
        rig.broker.topic("orders.2").publisher.publish([b""], [b"x"])
    assert ["data: " in stream.result().text for stream in streams] == [True, True]
    refused(poll.result(), 401, "AUTH_FAILED")


async def test_a_login_ends_with_its_token_also_when_that_comes_back(rig: HttpRig, authority: Authority) -> None:
    assert (await rig.ask("POST", "/v1/login", json={"token": "billing-token"})).status_code == 200
    assert (await rig.ask("GET", "/v1/topics")).status_code == 200
    authority.replace(grants("operator"))
    refused(await rig.ask("GET", "/v1/topics"), 401, "AUTH_FAILED")
    authority.replace(grants("operator", "billing"))
    refused(await rig.ask("GET", "/v1/topics"), 401, "AUTH_FAILED")


@pytest.mark.parametrize("cookie", [f"a=b;{COOKIE}={{}}", f"{COOKIE}={{}}; a=b", f'a="\\";\t{COOKIE}={{}} ;;'])
async def test_the_login_is_found_among_cookies(rig: HttpRig, cookie: str) -> None:
    assert (await rig.ask("POST", "/v1/login", json={"token": "billing-token"})).status_code == 200
    login_id = rig.client.cookies[COOKIE]
    rig.client.cookies.clear()
    assert (await rig.ask("GET", "/v1/login", headers={"cookie": cookie.format(login_id)})).status_code == 200
    for wrong in (login_id[:-1], login_id[:-1] + "é", "billing-token"):
        sent = cookie.format(wrong).encode("latin-1")
        refused(await rig.ask("GET", "/v1/login", headers={b"cookie": sent}), 401, "AUTH_FAILED")
    for none in (f"{COOKIE}=", COOKIE, "", f"x{COOKIE}={login_id}"):
        refused(await rig.ask("GET", "/v1/login", headers={"cookie": none}), 401, "AUTH_REQUIRED")


async def test_the_audit_trail_names_the_visitor_of_a_page_of_another_site(
    rig: HttpRig, caplog: pytest.LogCaptureFixture
) -> None:
    """Found by an attack: the refusal was logged with ``token=-``, so none knew whose browser it was."""
    await rig.ask("POST", "/v1/login", json={"token": "operator-token"})
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        refused(await rig.ask("DELETE", "/v1/topics/orders.1", headers=headers), 403, "FORBIDDEN")
    line = "action=deleteTopic topic=orders.1 token=operator address=127.0.0.1 via=http result=FORBIDDEN"
    assert [record.getMessage() for record in caplog.records if record.name == "toymq_py.audit"] == [line] * 2
