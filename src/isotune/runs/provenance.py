"""Which code made a row."""

from __future__ import annotations

import functools
import importlib.metadata
import subprocess
from pathlib import Path

import isotune


@functools.cache
def source_commit() -> tuple[str, bool]:
    """The commit of isotune's own sources and whether they differ from it; the version where there is no repository.

    As it was when this process first asked.
    """
    package = Path(isotune.__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(package), *arguments], capture_output=True, text=True)
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # A package installed inside somebody's own repository is not part of it.
    commit = git("rev-parse", "HEAD") if git("ls-files", "--error-unmatch", "__init__.py") else None
    if commit is None:
        return f"version {importlib.metadata.version('isotune')}", False
    return commit, bool(git("status", "--porcelain", "--", "."))
