"""What an empty database looks like after all migrations, kept on disk: migrating takes Django 19 s of processor.

Kept under a figure of all migrations, Django and PostgreSQL, so it is never that of other code. Migrations stay what
makes a schema: they run after it was laid down, and alone wherever there is a table already or nothing is kept.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import django

from portal.embedded import discovery, fingerprint

KEPT = 4


def fill(url: str, env: Mapping[str, str], migrate: Callable[[], object]) -> None:
    """Give an empty database its schema, and keep it where it was not: ``migrate`` runs in any case.

    Of several that find nothing kept, as the stacks and the databases of a test run, one migrates alone, and the
    others wait and lay down what it made.
    """
    if restore(url, env):
        migrate()
        return
    with _alone(env):
        restore(url, env)
        migrate()
        keep(url, env)


def restore(url: str, env: Mapping[str, str]) -> bool:
    """Lay the kept schema down in an empty database; False, and nothing is changed, when none is kept or it fails."""
    engine, folder = discovery.postgres(env), _folder(env)
    if folder is None or not (folder / _name(engine)).is_file():
        return False
    kept = folder / _name(engine)
    command = [
        str(engine.bin / "psql"),
        "--no-psqlrc",
        "--quiet",
        "--single-transaction",
        "--set=ON_ERROR_STOP=1",
    ]
    given = ["--output=/dev/null", f"--file={kept}", f"--dbname={url}"]
    try:
        subprocess.run([*command, *given], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        kept.unlink(missing_ok=True)
        return False
    return True


def keep(url: str, env: Mapping[str, str]) -> None:
    """Keep the schema of a database that was just migrated and holds nothing else; a disk may refuse it."""
    engine, folder = discovery.postgres(env), _folder(env)
    if folder is None:
        return
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        kept = folder / _name(engine)
        if kept.exists():
            return
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".", suffix=".part") as draft:
            command = [str(engine.bin / "pg_dump"), "--no-owner", f"--dbname={url}"]
            subprocess.run(command, stdout=draft, stderr=subprocess.DEVNULL, check=True)
            # Several may write the same: each has a file of its own until it is whole.
            with contextlib.suppress(FileExistsError):
                os.link(draft.name, kept)
        others = sorted(folder.glob("*.sql"), key=lambda file: file.stat().st_mtime, reverse=True)
        for other in [one for one in others if one != kept][KEPT:]:
            other.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(env: Mapping[str, str]) -> Iterator[None]:
    folder = _folder(env)
    if folder is None:
        yield
        return
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _folder(env: Mapping[str, str]) -> Path | None:
    """Return the folder, made where it was not; None where it cannot be ours alone: what lies there is run."""
    try:
        folder = Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "berth-schema"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        told = folder.lstat()
    except (OSError, RuntimeError):
        return None
    return (
        folder
        if stat.S_ISDIR(told.st_mode) and told.st_uid == os.geteuid() and not told.st_mode & 0o022
        else None
    )


def _name(engine: discovery.Engine) -> str:
    parts = (fingerprint.of_installed(), django.__version__, engine.version)
    return f"{hashlib.sha256(' '.join(parts).encode()).hexdigest()[:16]}.sql"
