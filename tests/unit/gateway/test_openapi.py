"""The OpenAPI document and the pages around it."""

import random
from collections.abc import AsyncIterator

import pytest

from tests.support.http_rig import HttpRig, gateway, refused
from tests.support.sim_disk import SimDisk
from toymq_py.gateway.app import OPERATIONS

DIR = "/data/d"


@pytest.fixture
async def rig() -> AsyncIterator[HttpRig]:
    async with gateway(DIR, fs=SimDisk(random.Random(1)), max_topics=200) as rig:
        yield rig


async def test_the_document_has_every_operation_and_every_page_stands_alone(rig: HttpRig) -> None:
    document = (await rig.ask("GET", "/openapi.json")).json()
    listed = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert listed == {(operation.method, operation.path) for operation in OPERATIONS}
    names = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]
    assert len(set(names)) == len(names)
    for path in ("/", "/docs"):
        page = await rig.ask("GET", path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "://" not in page.text, "nothing comes from elsewhere"
        again = await rig.ask("GET", path, headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        unwanted = await rig.ask("POST", path)
        refused(unwanted, 405, "UNKNOWN_COMMAND")
        assert unwanted.headers["allow"] == "GET, HEAD"
