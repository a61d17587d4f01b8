"""Exit 1 when a commit since the merge base with main has a subject of more than 72 characters."""

from __future__ import annotations

import subprocess
import sys

MOST = 72


def said(*arguments: str) -> str:
    """Return what git prints, nothing where it refuses: no repository, or no main in a shallow copy."""
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)  # noqa: S603, S607
    return done.stdout if done.returncode == 0 else ""


def too_long(subjects: list[str]) -> list[str]:
    """Return the subjects that are too long."""
    return [subject for subject in subjects if len(subject) > MOST]


if __name__ == "__main__":
    base = (said("merge-base", "HEAD", "origin/main") or said("merge-base", "HEAD", "main")).strip()
    found = too_long(said("log", "--format=%s", f"{base}..HEAD").splitlines() if base else [])
    for subject in found:
        sys.stderr.write(f"{len(subject)} characters, at most {MOST}: {subject}\n")
    sys.exit(1 if found else 0)
