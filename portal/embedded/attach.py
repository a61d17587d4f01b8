"""Commands of ``manage.py`` beside the stack that ``make up`` runs: they meet its stores without being told where."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from portal.embedded.places import CHECKOUT, POSTGRES_SOCKET, Places, socket_folder


def running_places(env: MutableMapping[str, str]) -> Places | None:
    """Return where the stack of this data folder (BERTH_DATA, else ``.berth``) runs now, None while it does not."""
    data = Path(os.path.realpath(Path(env.get("BERTH_DATA") or CHECKOUT / ".berth").expanduser()))
    places = Places(data=data, postgres=data, sockets=socket_folder(data, Path(tempfile.gettempdir())))
    runs = any((folder / name).is_socket() for folder, name in _sockets(places))
    return places if runs and _is_ours(places.sockets) else None


def attach(env: MutableMapping[str, str]) -> None:
    """Name the stores and the key of the running stack in ``env``, as far as nobody named others. Changes nothing else.

    Call before the settings are read. A store that was named (also by file) stays the one that is meant.
    """
    places = running_places(env)
    if places is None:
        return
    for name, value in (
        ("DATABASE_URL", places.database_url()),
        ("REDIS_URL", places.redis_url()),
        ("BERTH_SECRET_KEY_FILE", str(places.secret_key)),
    ):
        plain = name.removesuffix("_FILE")
        if not env.get(plain) and not env.get(f"{plain}_FILE"):
            env[name] = value


def _is_ours(folder: Path) -> bool:
    """Say whether this account made the folder: below a shared one anybody may have made it first."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _sockets(places: Places) -> tuple[tuple[Path, str], ...]:
    return (places.postgres_sockets, POSTGRES_SOCKET), (places.sockets, places.valkey_socket.name)
