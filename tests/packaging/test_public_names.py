"""The names that users may import, pinned: a name that is added or removed is a decision, not an accident."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.broker_process import environment
from toymq import errors
from toymq_py.errors import REQUEST_ERRORS

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    file.parent for top in ("toymq_py", "clients") for file in (ROOT / top).rglob("__init__.py")
)

PUBLIC = {
    "toymq_py": ["__version__"],
    "toymq": sorted([
        "App", "Client", "Codec", "Connected", "Disconnected", "Message", "Publishing", "Receipt", "Subscription",
        "__version__", "connect", "errors", "open", "sync", "values", *errors.__all__,
    ]),
    "toymq.sync": ["Client", "Message", "Subscription", "connect", "open"],
}  # fmt: skip


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == PUBLIC[package]
    for name in module.__all__:
        assert hasattr(module, name), f"{package}.{name} is promised and not there"


def output_of(program: str) -> str:
    run = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, text=True, check=True)
    return run.stdout


def test_every_error_that_a_client_may_raise_is_exported() -> None:
    """Found by a trial: ``except toymq.QueueFull`` was an AttributeError."""
    import toymq

    codes = {name for name in errors.__all__ if issubclass(getattr(toymq, name), toymq.ToymqError)}
    assert codes == set(errors.__all__)
    assert {cls.__name__ for cls in REQUEST_ERRORS.values()} <= codes


@pytest.mark.parametrize("package", ["toymq", "toymq.sync"])
def test_dir_shows_the_public_names_and_no_others(package: str) -> None:
    """Completion in a REPL uses ``dir``: it must include names that are not loaded yet, and no private helpers."""
    shown = {name for name in output_of(f"import {package} as module; print(*dir(module))").split() if name[0] != "_"}
    modules = {"testing", "tracing"} if package == "toymq" else set()
    assert shown == {name for name in PUBLIC[package] if name[0] != "_"} | modules


def test_a_repl_completes_the_public_names() -> None:
    program = """
import rlcompleter, toymq
completer = rlcompleter.Completer({"toymq": toymq})
found = []
while (text := completer.complete("toymq.", len(found))) is not None:
    found.append(text.removeprefix("toymq.").rstrip("()"))
print(*found)
"""
    assert {"connect", "open", "sync", "errors", "testing"} <= set(output_of(program).split())


def test_without_pytest_the_rest_completes_and_testing_says_what_it_needs() -> None:
    program = """
import inspect, sys
sys.modules["pytest"] = sys.modules["opentelemetry"] = None
import toymq
print("connect" in dict(inspect.getmembers(toymq)))
try:
    toymq.testing
except AttributeError as error:
    print(error)
"""
    assert output_of(program) == "True\ntoymq.testing needs pytest: pip install pytest\n"


def test_pytest_is_loaded_with_toymq_testing_and_not_before() -> None:
    program = "import sys, toymq; dir(toymq); print('pytest' in sys.modules); toymq.testing; print('pytest' in sys.modules)"
    assert output_of(program) == "False\nTrue\n"


def test_python_m_toymq_is_the_command_line() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "toymq", "--version"], env=environment(), capture_output=True, text=True, check=True
    )
    assert run.stdout == f"toymq, version {importlib.import_module('toymq').__version__}\n"


def loaded_by(module: str) -> set[str]:
    program = f"import sys, {module}; print(*(name for name in sys.modules if name.startswith('toymq')))"
    return set(output_of(program).split())


def test_importing_the_package_loads_no_broker_module() -> None:
    assert loaded_by("toymq_py") == {"toymq_py", "toymq_py.version"}


@pytest.mark.parametrize("module", ["toymq", "toymq.sync"])
def test_importing_a_client_loads_no_broker_module(module: str) -> None:
    loaded = loaded_by(module)
    assert module in loaded
    broker = {name for name in loaded if name.startswith("toymq_py") and not name.startswith("toymq_py.protocol")}
    modules = (
        "consumer_options", "errors", "failure", "fixed_rows", "lease_number", "names", "records", "setting_units", "units",
        "version",
    )  # fmt: skip
    assert broker <= {"toymq_py", *(f"toymq_py.{name}" for name in modules)}


def test_the_blocking_client_does_not_load_asyncio() -> None:
    program = "import sys, toymq.sync; print('asyncio' in sys.modules)"
    assert output_of(program) == "False\n", "a command line starts without it"


def test_errors_have_codes_of_their_own() -> None:
    client = importlib.import_module("toymq")
    kinds = [getattr(client, name) for name in client.__all__]
    errors = [kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, client.ToymqError)]
    leaves = [kind for kind in errors if kind not in (client.ToymqError, client.RequestError, client.DirectoryLost)]
    assert len({kind.code for kind in leaves}) == len(leaves) > 8


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if name[0] != "_"}


@pytest.mark.parametrize("name", ["Client", "Subscription", "Message"])
def test_both_clients_have_the_same_names(name: str) -> None:
    asyncio_one, blocking_one = (getattr(importlib.import_module(one), name) for one in ("toymq", "toymq.sync"))
    only_one = {"drain"} if name == "Subscription" else set()  # in one thread no handler runs while another is waited for
    assert public(asyncio_one) - public(blocking_one) == only_one
    assert public(blocking_one) - public(asyncio_one) == set()


MADE_FROM_REQUESTS = [
    "ack", "nack", "redrive", "fetch", "offsets", "topics", "describe", "stats", "create", "config", "delete", "purge", "seek",
    "forget",
]  # fmt: skip


@pytest.mark.parametrize("name", MADE_FROM_REQUESTS)
def test_methods_made_from_requests_have_the_same_signature_and_docstring_in_both_clients(name: str) -> None:
    asyncio_one, blocking_one = (getattr(importlib.import_module(one).Client, name) for one in ("toymq", "toymq.sync"))
    request = getattr(importlib.import_module("toymq.requests"), name)
    assert asyncio_one.__doc__ == blocking_one.__doc__ == request.__doc__ is not None
    signature = inspect.signature(asyncio_one)
    assert signature == inspect.signature(blocking_one)
    assert list(signature.parameters) == ["self", *(one for one in inspect.signature(request).parameters if one != "client")]
    assert "Request" not in str(signature.return_annotation), "a caller gets the result and not the request"
    assert inspect.iscoroutinefunction(asyncio_one)
    assert not inspect.iscoroutinefunction(blocking_one)
    assert asyncio_one.__qualname__ == f"Client.{name}"


def test_the_client_is_typed() -> None:
    client = importlib.import_module("toymq")
    assert Path(client.__file__ or "").with_name("py.typed").exists(), "without it type checkers take all for Any"
    functions = {"connect": client.connect}
    for name in client.__all__:
        members = vars(getattr(client, name)) if inspect.isclass(getattr(client, name)) else {}
        functions |= {f"{name}.{key}": value for key, value in members.items() if key[0] != "_"}
    signatures = {name: inspect.signature(function) for name, function in functions.items() if inspect.isfunction(function)}
    assert len(signatures) > 20
    for name, signature in signatures.items():
        assert signature.return_annotation is not signature.empty, f"{name} does not say what it returns"
        for parameter in signature.parameters.values():
            assert parameter.name == "self" or parameter.annotation is not parameter.empty, f"{name}: {parameter.name}"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_file_re_exports_and_never_implements(package: Path) -> None:
    body = ast.parse((package / "__init__.py").read_text()).body
    implemented = [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and node.name not in ("__getattr__", "__dir__")  # of what is loaded later
    ]
    assert not implemented, f"{package.name}/__init__.py implements {implemented}: give it a file of its own"


def public_docstrings() -> dict[str, str]:
    """Return what ``help`` shows for the classes, methods and functions that users import, by name."""
    found: dict[str, str] = {}
    for package in ("toymq", "toymq.sync", "toymq.errors"):
        module = importlib.import_module(package)
        found[package] = module.__doc__ or ""
        for name in module.__all__:
            thing = getattr(module, name)
            if not inspect.isclass(thing) and not inspect.isfunction(thing):
                continue
            found[f"{package}.{name}"] = inspect.getdoc(thing) or ""
            members = inspect.getmembers(thing) if inspect.isclass(thing) else []
            ours = ((method, inspect.getdoc(one)) for method, one in members if not method.startswith("_"))
            found |= {f"{package}.{name}.{method}": text or "" for method, text in ours}
    return found


def test_help_names_nothing_that_a_user_does_not_have() -> None:
    """Found: docstrings referred to "delivery.md", to "JSON shapes" of protocol.md, and to a class ``Delivery`` that cannot be
    imported."""
    strays = {
        name: stray
        for name, text in public_docstrings().items()
        if (stray := re.findall(r"\S+\.md\b|ADR \d+|JSON shapes|``Delivery``", text))
    }
    assert strays == {}


def test_help_tells_what_is_returned_and_what_may_be_set() -> None:
    texts = public_docstrings()
    for name, words in {
        "describe": ("``consumers``", "``state``", "milliseconds"), "stats": ("``version``", "``topics``", "``publish_total``"),
        "fetch": ("iter_frames", "``next_id``"), "create": ("``visibility``", "``when_full``"), "forget": ("ConsumerDeleted",),
        "seek": ("create:", "NoSuchConsumer"),
    }.items():  # fmt: skip
        for package in ("toymq", "toymq.sync"):
            assert [word for word in words if word not in texts[f"{package}.Client.{name}"]] == [], (package, name)
    for package in ("toymq", "toymq.sync"):
        assert "payload:" in texts[f"{package}.Message"]
        assert "second ack" in texts[f"{package}.Message.ack"]
    assert "retryable:" in texts["toymq.RequestError"]
    settings = importlib.import_module("toymq_py.setting_units").SETTINGS
    assert [name for name in settings if f"``{name}``" not in texts["toymq.Client.create"]] == []
