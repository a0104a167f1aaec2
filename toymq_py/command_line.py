"""Starts every command line: loads its module, without a traceback for Ctrl-C or for an extra that is not installed."""

import sys

EXTRAS = {
    "deltalake": "tables", "hdrh": "bench", "httptools": "http", "matplotlib": "plots", "numpy": "spark", "obstore": "lake",
    "pandas": "spark", "pyarrow": "spark", "pyiceberg": "tables", "pyspark": "spark", "rich": "tui", "sqlalchemy": "tables",
    "starlette": "http", "textual": "tui", "websockets": "http",
}  # fmt: skip
"""Packages, and the extra that brings each."""
INTERRUPTED = 130
USAGE = 2


def run(name: str, module: str) -> None:
    """Load the module of a command and call its ``main``, which may load what an extra brings."""
    try:
        try:
            __import__(module)  # importlib takes as long to load as Python itself, and Ctrl-C meanwhile is Python's to show
            sys.modules[module].main()
        except ModuleNotFoundError as error:
            line = missing(error)
            if line is None:
                raise
            sys.stderr.write(f"{name} {line}\n")
            raise SystemExit(USAGE) from None
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None


def missing(error: ModuleNotFoundError) -> str | None:
    """How to install a missing module, as the end of an error text; None when no extra includes it."""
    from importlib.util import find_spec

    package = str(error.name).partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = EXTRAS[package]
    absent = [one for one, its in EXTRAS.items() if its == extra and (one == package or find_spec(one) is None)]
    return f"needs {' and '.join(absent)}: {install_hint(extra)}"


def needs(error: ModuleNotFoundError, extra: str) -> str:
    """The text, to follow an option's name, that it needs an extra, and how to install it."""
    return missing(error) or f"needs {error.name}: {install_hint(extra)}"


def install_hint(extra: str) -> str:
    """How to install an extra: by path, as toymq is on no package index, where another package may have its name."""
    return f"in a checkout of toymq, pip install '.[{extra}]'"
