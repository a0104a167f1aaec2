"""Gets schemas from a Confluent-compatible registry, over HTTP. Answers are bounded in size and time; found schemas are cached.

    GET /schemas/ids/<id>                          {"schema": "…", "schemaType": "AVRO"}
    GET /subjects/<subject>/versions/<version>     {"id": 7, "schema": "…", "references": [{"name", "subject", "version"}, …]}

A registry that does not answer raises an error, since Spark can run the task again; for an unknown id the result is None.
"""

import json
import re
import socket
import threading
import time
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from toymq_py.errors import ConfigError
from toymq_py.text_files import read_text
from toymq_spark.errors import OptionError, RegistryFailed

ANSWER_BYTES_MAX = 1 << 20
"""Ten times the largest schema that is common."""
ANSWER_S = 10.0
ATTEMPTS = 3
SCHEMAS_MAX = 1000
"""Of one task; what was used last stays."""
PREFIX_BYTES = 5
"""A zero and the id of the schema, before a value."""
_URL = re.compile(r"(?P<base>https?://[^?#]*?)/subjects/(?P<subject>[^/?#]+)/versions/(?P<version>latest|[0-9]{1,9})/?")


@dataclass(frozen=True, slots=True)
class Subject:
    """A version of a subject, as given by its URL."""

    base: str
    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Reference:
    """An import of a schema: the name in the import, and the version of a subject that it refers to."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema's text, with its references. ``kind``: AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    references: tuple[Reference, ...] = ()


def subject_of(url: str) -> Subject:
    """Parse the URL of a version of a subject. Raises: OptionError."""
    found = _URL.fullmatch(url)
    if found is None or "@" in url:
        shown = re.sub("//[^/]*@", "//…@", url)[:200]  # not the password
        raise OptionError(
            f"option valueSchema: invalid URL {shown}: write https://REGISTRY/subjects/NAME/versions/latest, or a number for "
            "latest; a user has no place in it: write valueSchema.credentials.file"
        )
    return Subject(found["base"], found["subject"], found["version"])


class Registry:
    """A client of a schema registry. It is pickled without its cache of schemas.

    ``credentials_file``: contains ``user:password``, and is read for each request, on each node.
    """

    def __init__(
        self, base: str, credentials_file: str | None = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._base = base
        self._credentials_file = credentials_file
        self._sleep = sleep
        self._kept: OrderedDict[int, Schema | None] = OrderedDict()

    def __reduce__(self) -> tuple[type["Registry"], tuple[str, str | None]]:
        return Registry, (self._base, self._credentials_file)

    def schema(self, schema_id: int) -> Schema | None:
        """Return the schema with an id; None if the registry has none. Raises: RegistryFailed."""
        if schema_id in self._kept:
            self._kept.move_to_end(schema_id)
            return self._kept[schema_id]
        answer = self._get(f"/schemas/ids/{schema_id}")
        found = None if answer is None else _schema(answer)
        self._kept[schema_id] = found
        if len(self._kept) > SCHEMAS_MAX:
            self._kept.popitem(last=False)
        return found

    def version(self, subject: Subject, kind: str) -> tuple[int, Schema]:
        """Return id and schema of a version of a subject. Raises: OptionError when there is none of this kind,
        RegistryFailed."""
        answer = self._version(subject.name, subject.version)
        if answer is None:
            raise OptionError(
                f"option valueSchema: {self._base} has no version {subject.version} of a subject {subject.name}"
            )
        found = _schema(answer)
        if found.kind != kind:
            raise OptionError(f"option valueSchema: {subject.name} is {found.kind}, and valueFormat={kind.lower()}")
        schema_id = answer.get("id")
        if type(schema_id) is not int or not 0 <= schema_id < 1 << 32:
            raise RegistryFailed(f"{self._base}: invalid answer for {subject.name}: it has no id")
        return schema_id, found

    def referenced(self, reference: Reference) -> Schema | None:
        """Return the schema that a reference names; None if there is none. Raises: RegistryFailed."""
        answer = self._version(quote(reference.subject, safe=""), str(reference.version))
        return None if answer is None else _schema(answer)

    def _version(self, quoted_subject: str, version: str) -> dict[str, Any] | None:
        return self._get(f"/subjects/{quote(quoted_subject, safe='%')}/versions/{version}")

    def _get(self, path: str) -> dict[str, Any] | None:
        """Send a GET request, and return the JSON of the answer; None for status 404. Raises: RegistryFailed."""
        why, headers = "", self._headers()
        status = 0
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(2.0**attempt / 4)
            try:
                status, body = _fetch(self._base, path, headers)
            except (OSError, HTTPException) as error:
                why = str(error) or type(error).__name__
                continue
            if status == 404:
                return None
            if status == 200:
                return _object(self._base, body)
            why = f"HTTP {status}"
            if status < 500 and status != 429:
                break
        if status in (401, 403):
            remedy = "valueSchema.credentials.file has to name a user that may read"
            raise RegistryFailed(f"{self._base}{path}: HTTP {status}: {remedy}")
        raise RegistryFailed(f"{self._base}{path}: {why}: does the registry run, and is this its address?")

    def _headers(self) -> dict[str, str]:
        """Return the request's headers, with the credentials. Raises: OptionError."""
        headers = {"Accept": "application/json"}
        if self._credentials_file is not None:
            try:
                given = read_text(self._credentials_file, "valueSchema.credentials.file").strip()
            except ConfigError as error:
                raise OptionError(f"option valueSchema.credentials.file: {error}") from None
            headers["Authorization"] = f"Basic {b64encode(given.encode()).decode()}"
        return headers


def _fetch(base: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    """Send a GET request. Returns: status and body. Raises: OSError, HTTPException."""
    parts = urlsplit(base)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.netloc, timeout=ANSWER_S)
    connection.connect()
    # Its timeout is for each read; an answer that drips in would have no end.
    late = threading.Event()
    deadline = threading.Timer(ANSWER_S, _shut_down, (connection.sock, late))
    deadline.daemon = True
    deadline.start()
    found = 0, b""
    try:
        found = _exchange(connection, f"{parts.path.rstrip('/')}{path}", headers)
    except (OSError, HTTPException):
        if not late.is_set():  # else how it fails depends on the moment
            raise
    finally:
        deadline.cancel()
        connection.close()
    if late.is_set():  # what was read may look whole
        raise TimeoutError(f"no whole answer within {ANSWER_S:g} s")
    return found


def _exchange(connection: HTTPConnection, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read(ANSWER_BYTES_MAX + 1)
    if len(body) > ANSWER_BYTES_MAX:
        raise HTTPException(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
    return answer.status, body


def _shut_down(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _object(base: str, body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RegistryFailed(f"{base}: the answer is not a JSON object: is it a schema registry?")
    return found


def _schema(answer: dict[str, Any]) -> Schema:
    text, kind, references = answer.get("schema"), answer.get("schemaType", "AVRO"), answer.get("references")
    if not isinstance(text, str):
        raise RegistryFailed("invalid answer of a registry: it has no schema")
    if not isinstance(kind, str) or not isinstance(references, list | None):
        raise RegistryFailed("invalid answer of a registry: its schemaType or references are none")
    return Schema(kind, text, tuple(map(_reference, references or ())))


def _reference(given: Any) -> Reference:
    match given:
        case {"name": str(name), "subject": str(subject), "version": int(version)} if version > 0:
            return Reference(name, subject, version)
        case _:
            raise RegistryFailed("invalid answer of a registry: a reference has no name, subject or version")
