"""Commands of ``manage.py`` beside the stack that ``make up`` runs: they meet its stores without being told where."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from portal.embedded.places import CHECKOUT, POSTGRES_SOCKET, StackPaths, socket_folder


def attach(env: MutableMapping[str, str]) -> None:
    """Name the stores of the running stack in ``env``, and its key, as far as nobody named others.

    The stack is that of BERTH_DATA, else of ``.berth``; where none runs, nothing changes. Call before the settings
    are read. A store that was named (also by file) stays the one that is meant.
    """
    data = Path(os.path.realpath(Path(env.get("BERTH_DATA") or CHECKOUT / ".berth").expanduser()))
    places = StackPaths(data=data, postgres=data, sockets=socket_folder(data, Path(tempfile.gettempdir())))
    if not _is_ours(places.sockets):
        return
    for name, value, is_there in (
        ("DATABASE_URL", places.database_url(), (places.postgres_sockets / POSTGRES_SOCKET).is_socket()),
        ("REDIS_URL", places.redis_url(), places.valkey_socket.is_socket()),
        ("BERTH_SECRET_KEY_FILE", str(places.secret_key), places.secret_key.is_file()),
    ):
        plain = name.removesuffix("_FILE")
        if is_there and not env.get(plain) and not env.get(f"{plain}_FILE"):
            env[name] = value


def _is_ours(folder: Path) -> bool:
    """Say whether this account made the folder: below a shared one anybody may have made it first."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
