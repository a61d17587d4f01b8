"""What a lease's holder should know before it ends: a file per lease, named in its environment, and a signal.

``BERTH_NOTICE`` names a file that does not exist until there is something to say. It then holds one JSON object:
lease, why, ends_at (ISO 8601, by this host's clock), and is for the holder alone to read. Processes that listen for
SIGUSR1 get that signal; others are left alone, because it would end them.

The file lies in a folder of its lease: a container is shown that one, read-only, and nobody else's. No two leases
have one folder. Leases that an older agent opened were told ``<lease>.json`` beside the folder, or a folder in whose
name every dot had become ``_``; from there a link leads to the file, unless another lease's folder has that name.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Final

from nodeagent.host.accounts import Account, account_of
from nodeagent.host.files import passable, put, read_text

log = logging.getLogger(__name__)

VARIABLE: Final = "BERTH_NOTICE"
FILE: Final = "notice.json"
NOT_PLAIN: Final = re.compile(r"[^A-Za-z0-9_-]")
ESCAPED: Final = re.compile(r"(?:=[0-9a-f]{2})+")
CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


def notice_path(folder: Path, lease: str) -> Path:
    """Return the file for a lease's notice, in a folder whose name no other lease has.

    Letters, digits, dashes and ``_`` stay; of anything else, such as a dot, each byte becomes ``=`` and two digits.
    """
    return (
        folder
        / NOT_PLAIN.sub(lambda found: "".join(f"={byte:02x}" for byte in found[0].encode()), lease)
        / FILE
    )


def _old_path(path: Path) -> Path:
    """Return where agents before this layout put the notice of the same lease."""
    return path.parent.with_name(f"{_old_name(path)}.json")


def _old_name(path: Path) -> str:
    """Return the folder's name as agents gave it that told ``a.b`` and ``a_b`` the same."""
    lease = ESCAPED.sub(
        lambda found: bytes.fromhex(found[0].replace("=", "")).decode(errors="replace"), path.parent.name
    )
    return NOT_PLAIN.sub("_", lease)


def put_up(
    path: Path,
    *,
    lease: str,
    why: str,
    ends_at: datetime,
    user: str = "",
    account: Callable[[str], Account] = account_of,
    is_root: bool | None = None,
) -> None:
    """Write a notice in one piece; raises OSError when the disk refuses.

    Only root can give it to its ``user``; one without an account here has no processes to read it.
    """
    passable(path.parent)
    body = {"lease": lease, "why": why, "ends_at": ends_at.isoformat(timespec="seconds")}
    owner = None
    if user and (os.geteuid() == 0 if is_root is None else is_root):
        with contextlib.suppress(LookupError):
            holder = account(user)
            owner = holder.uid, holder.gid
    put(path, json.dumps(body) + "\n", mode=0o640, owner=owner)
    _lead_from_old_places(path)


def _lead_from_old_places(path: Path) -> None:
    """Let what an older agent told a lease lead to its notice; where the name may be another lease's, nothing goes."""
    link, old = _old_path(path), path.parent.with_name(_old_name(path))
    if old == path.parent and not link.is_symlink():
        link.unlink(missing_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(Path(path.parent.name) / path.name)
    with contextlib.suppress(FileExistsError):
        old.symlink_to(path.parent.name)


def take_down(path: Path, *, is_over: bool = False) -> None:
    """Remove a notice, and its folder where the lease ``is_over``: before, a container may look into it.

    None there, or a disk that refuses, is no harm.
    """
    try:
        path.unlink(missing_ok=True)
        link, old = _old_path(path), path.parent.with_name(_old_name(path))
        for one in (link, old):
            is_ours = one.is_symlink() and one.readlink().parts[0] == path.parent.name
            if is_ours or (one == link and old == path.parent):
                one.unlink(missing_ok=True)
        if is_over and path.parent.is_dir():
            path.parent.rmdir()
    except OSError as no:
        log.warning("cannot remove %s: %s", path, no)


def call(
    pids: Iterable[int], read: Callable[[str], str] = read_text, send: Callable[[int, int], None] = os.kill
) -> list[int]:
    """Send SIGUSR1 to those of the processes that handle it; returns which. ``read`` is how to read /proc."""
    called = []
    for pid in pids:
        if not listens(pid, read):
            continue
        try:
            send(pid, signal.SIGUSR1)
        except OSError as no:
            log.warning("cannot signal process %d: %s", pid, no)
            continue
        called.append(pid)
    return called


def listens(pid: int, read: Callable[[str], str] = read_text) -> bool:
    """Say whether a process has a handler for SIGUSR1; unknown is no."""
    try:
        found = CAUGHT.search(read(f"/proc/{pid}/status"))
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (signal.SIGUSR1 - 1) & 1)
