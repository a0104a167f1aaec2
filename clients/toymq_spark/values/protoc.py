"""Compiles Protobuf sources to descriptors with the protoc of grpcio-tools (ADR 0278).

protoc runs in a separate process: it is C++ code that reads texts of strangers, and it writes its errors to stderr.
"""

import re
import subprocess
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from toymq_spark.errors import OptionError, ProtocFailed

PROTOC_S = 60.0
"""A hundred times what it takes for the largest source that is given to it."""
_SAID_BYTES_MAX = 4000
_LOGGED = re.compile(r"WARNING: All log messages |[IWEF][0-9]{4} |.*: warning: ")
_NAMES_TAKEN = (FileExistsError, IsADirectoryError, NotADirectoryError)


@lru_cache(maxsize=32)
def compiled(sources: tuple[tuple[str, str], ...], main: str) -> bytes:
    """Return the descriptor set of a source, with those of all imports. It is cached for the next task, since a compilation
    takes 0.1 s.

    Assumes that the names are relative paths that stay within a directory.

    Raises: ValueError, with protoc's errors, for an invalid source; OptionError when grpcio-tools is not installed;
        ProtocFailed.
    """
    try:
        import grpc_tools  # noqa: F401 (its compiler is another process's)
    except ImportError:
        raise OptionError(
            "option valueFormat: protobuf with a registry needs grpcio-tools: pip install 'toymq[protobuf]', on every node"
        ) from None
    try:
        with tempfile.TemporaryDirectory(prefix="toymq-protoc-") as place:
            return _compiled(Path(place), sources, main)
    except _NAMES_TAKEN:
        raise ValueError("a name of its references is a directory of another one") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProtocFailed(f"protoc does not run, or not to its end: {error}") from None


def _compiled(place: Path, sources: tuple[tuple[str, str], ...], main: str) -> bytes:
    directory, out, errors = place / "sources", place / "descriptors", place / "errors"
    for name, text in sources:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    # -P, and not in the directory: a source that is called grpc_tools/protoc.py is no module.
    protoc = [sys.executable, "-P", "-m", "grpc_tools.protoc", f"-I{directory}", "--include_imports"]
    with errors.open("wb") as said:
        ended = subprocess.run(
            [*protoc, f"--descriptor_set_out={out}", main], check=False, timeout=PROTOC_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
        )  # fmt: skip
    if ended.returncode:
        with errors.open("rb") as file:
            text = file.read(_SAID_BYTES_MAX).decode(errors="replace").replace(f"{directory}/", "")
        told = [line for line in text.splitlines() if not _LOGGED.match(line)]
        raise ValueError(f"protoc: {chr(10).join(told) or f'exit code {ended.returncode}'}")
    return out.read_bytes()
