from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from portal.embedded import discovery
from portal.embedded.discovery import Engine
from portal.embedded.places import SystemAccount, can_reach

# A small server with full durability. Each process of ours may hold a pool; 60 is room for all of them.
SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "60",
    "shared_buffers": "48MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_wal_size": "256MB",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
    "random_page_cost": "1.1",
    "autovacuum_max_workers": "2",
    "max_logical_replication_workers": "0",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}
# For tests only: a crash may lose the database, nobody waits for the disk.
CARELESS = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "100",
    "autovacuum": "off",
}
QUIET_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


def cluster_major(cluster: Path) -> int | None:
    """Major version that made the data, or None when there is none yet."""
    try:
        return int((cluster / "PG_VERSION").read_text().split(".")[0])
    except FileNotFoundError:
        return None


def within_reach(engine: Engine, account: SystemAccount, home: Path) -> Engine:
    """The engine itself, or a copy under ``home`` when its account cannot enter the folder it lies in."""
    if can_reach(account, engine.program):
        return engine
    installed = engine.bin.parent
    package = installed.parent
    copy = home / f"engine-{engine.version}"
    if not copy.exists():
        unfinished = home / f"engine-{engine.version}.part"
        shutil.rmtree(unfinished, ignore_errors=True)
        # The wheel's programs look for their libraries beside the package, relative to themselves.
        libraries = package.with_name(f"{package.name}.libs")
        kept = unfinished / package.name / installed.name
        shutil.copytree(installed, kept, ignore=shutil.ignore_patterns("include"))
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        _hand_over(unfinished, account)
        unfinished.rename(copy)
    program = copy / package.name / installed.name / "bin" / "postgres"
    return Engine(program, engine.version, f"copy of {engine.source}")


def _hand_over(folder: Path, account: SystemAccount) -> None:
    for root, _folders, files in os.walk(folder):
        for name in (".", *files):
            os.chown(Path(root) / name, account.uid, account.gid)


def run(engine: Engine, cluster: Path, sockets: Path, settings: Mapping[str, str]) -> int:
    """Become the database server; a missing cluster is created first. Runs as the engine's account.

    Creation is part of the server's own process so that it overlaps with the import of Django. A
    creation that was cut short leaves only a ``.part`` folder, which the next start clears.
    """
    if not (cluster / "PG_VERSION").exists():
        status = _create(engine, cluster)
        if status:
            return status
    os.execve(engine.program, command(engine, cluster, sockets, settings), QUIET_ENVIRONMENT)


def _create(engine: Engine, cluster: Path) -> int:
    unfinished = cluster.with_name(cluster.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    made = subprocess.run(
        [
            engine.bin / "initdb",
            f"--pgdata={unfinished}",
            "--username=berth",
            "--encoding=UTF8",
            "--locale=C",
            *(["--locale-provider=builtin", "--builtin-locale=C.UTF-8"] if engine.major >= 17 else []),
            "--data-checksums",
            # The socket lies in a folder that only this account and root can enter.
            "--auth=trust",
            "--no-instructions",
        ],
        env=QUIET_ENVIRONMENT,
        check=False,
    )
    if made.returncode == 0:
        unfinished.rename(cluster)
    return made.returncode


def command(engine: Engine, cluster: Path, sockets: Path, settings: Mapping[str, str]) -> list[str]:
    """The server's command line; everything we set is here, nothing in edited files."""
    chosen = {**settings, "unix_socket_directories": f'"{sockets}"'}
    if engine.major >= 18:
        # The default keeps three more processes for reading ahead, which a small server never uses.
        chosen["io_method"] = "sync"
    return [str(engine.program), "-D", str(cluster), *(f"--{name}={value}" for name, value in chosen.items())]


def is_ready(cluster: Path, pid: int) -> bool:
    """Whether that very server accepts connections: it says so in its pid file, as pg_ctl reads it."""
    try:
        lines = (cluster / "postmaster.pid").read_text().splitlines()
    except OSError:
        return False
    return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"


def choose(env: Mapping[str, str], cluster: Path, account: SystemAccount) -> Engine:
    """The engine for this data, within reach of the account it runs as."""
    engine = discovery.postgres(env, cluster_major=cluster_major(cluster))
    return within_reach(engine, account, cluster.parent)
