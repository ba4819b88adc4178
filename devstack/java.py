"""Find Java 17 or newer, the only program that comes from the operating system."""

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path

from devstack.paths import environment

OLDEST = 17


@functools.cache
def find_java() -> Path:
    """Return the ``java`` of JAVA_HOME, or else of the environment's PATH.

    :raises RuntimeError: there is none, or it is too old; the message contains the remedy
    """
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java", path=environment()["PATH"])
    remedy = (
        f"Install Java {OLDEST} or newer (Debian, Ubuntu: apt-get install default-jre-headless; "
        "macOS: brew install openjdk@17), or set JAVA_HOME."
    )
    if found is None:
        raise RuntimeError(f"There is no java on PATH, and JAVA_HOME is not set. {remedy}")
    try:
        # Java prints its version to standard error, and so does the stub that macOS has in place of Java.
        banner = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60).stderr
    except OSError as error:
        raise RuntimeError(f"{found} cannot be run ({error.strerror}). {remedy}") from error
    version = re.search(r'version "(\d+)', banner)
    if version is None:
        raise RuntimeError(f"{found} prints no version: {banner.strip()[:200]!r}. {remedy}")
    if int(version[1]) < OLDEST:
        raise RuntimeError(f"{found} is Java {version[1]}. {remedy}")
    return Path(found)


def java_home() -> Path:
    """Return the JAVA_HOME of :func:`find_java`."""
    home = os.environ.get("JAVA_HOME")
    return Path(home) if home else find_java().resolve().parent.parent
