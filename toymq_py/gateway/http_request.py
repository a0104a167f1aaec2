"""The request that operations get: Starlette's, with a header look-up of constant cost, and a limit on the query,
checked before parsing."""

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, QueryParams
from starlette.requests import Request, empty_receive, empty_send
from starlette.types import Receive, Scope, Send

from toymq_py.errors import BadArgument

QUERY_FIELDS_MAX = 32
"""Most fields of a query: three times the parameters of any operation, and none may be given twice. Each costs more than a
byte."""
_QUERY = "toymq.query"


class _Keys(dict[str, bytes]):
    """A cache of the header names that the broker looks up, encoded as in a request."""

    def __missing__(self, name: str) -> bytes:
        key = self[name] = name.lower().encode("latin-1")
        return key


_KEYS = _Keys()


class Fields(Headers):
    """The headers of a request, with a look-up of constant cost. Starlette's encodes the name and walks all headers at each
    look-up, and most of the dozen look-ups of a request find nothing. Look up only fixed names: each is cached for ever."""

    def __init__(self, raw: Sequence[tuple[bytes, bytes]]) -> None:
        """``raw`` has names in lower case."""
        self._list = raw if isinstance(raw, list) else list(raw)
        self._first = dict(reversed(self._list))

    def get(self, key: str, default: Any = None) -> Any:
        """The first value of a name."""
        value = self._first.get(_KEYS[key])
        return default if value is None else value.decode("latin-1")

    def __getitem__(self, key: str) -> str:
        return self._first[_KEYS[key]].decode("latin-1")

    def __contains__(self, key: Any) -> bool:
        return _KEYS[key] in self._first

    def getlist(self, key: str) -> list[str]:
        """All values of a name."""
        return super().getlist(key) if _KEYS[key] in self._first else []


class HttpRequest(Request):
    """One HTTP request."""

    def __init__(self, scope: Scope, receive: Receive = empty_receive, send: Send = empty_send) -> None:
        super().__init__(scope, receive, send)
        self._fields = Fields(scope["headers"])

    @property
    def headers(self) -> Fields:
        return self._fields

    @property
    def query_params(self) -> QueryParams:
        """The query parameters. Raises: BadArgument."""
        return query_of(self.scope)


def query_of(scope: Scope) -> QueryParams:
    """The query parameters of a request, parsed once, at first use: after the check of rights, unless a parameter names the
    topic to check. Raises: BadArgument."""
    found: QueryParams | None = scope.get(_QUERY)
    if found is None:
        raw: bytes = scope["query_string"]
        if raw.count(b"&") >= QUERY_FIELDS_MAX:
            raise BadArgument(f"too many parameters behind the ?: at most {QUERY_FIELDS_MAX} are accepted")
        found = scope[_QUERY] = QueryParams(raw)
    return found
