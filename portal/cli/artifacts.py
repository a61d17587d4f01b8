"""Commands about the files that a job left: list them, and download them into a folder."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import typer

from portal.cli import formatting, output
from portal.cli.command import Json, api, guarded
from portal.cli.jobs import JobId, safe_name

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

Attempt = Annotated[int, typer.Option(min=0, help="Number of the attempt; 0 is the last one.")]


@guarded
def artifacts(name: JobId, attempt: Attempt = 0, as_json: Json = False) -> None:
    """List the files that a job left, and what was left out."""
    with api() as portal:
        found = _found(portal, safe_name(name), attempt)
        is_closed = _is_closed(portal, safe_name(name), attempt)
    cells = [
        (
            one["path"] or "…",
            "" if one["left_out"] else formatting.size(one["size"]),
            _state(one),
            one["sha256"][:12],
        )
        for one in found
    ]
    columns = ("PATH", "SIZE", "STATE", "SHA-256")
    output.listing(found, columns, cells, empty="This attempt left no files.", as_json=as_json)
    if not is_closed:
        output.say("More may come: its files are collected when an attempt ends, and brought here.")


@guarded
def download(
    name: JobId,
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="[PATTERN]…", help="As “out/*.ckpt”; all when left out.")
    ] = None,
    to: Annotated[Path, typer.Option("--to", help="The folder to write to.")] = Path(),
    attempt: Attempt = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Download the files that a job left. Each is compared with the SHA-256 that it had on its node."""
    with api() as portal:
        uid = safe_name(name)
        wanted = [
            one
            for one in _found(portal, uid, attempt)
            if one["path"] and (not patterns or any(fnmatch.fnmatchcase(one["path"], p) for p in patterns))
        ]
        ready = [one for one in wanted if one["can_download"]]
        for one in ready:
            target = _target(to, one["path"])
            if target.exists() and not force:
                raise typer.BadParameter(f"{target} is there already; --force replaces it")
            _fetch(portal, f"jobs/{uid}/artifacts/{one['id']}/", one["sha256"], target)
            output.out(str(target))
        for one in wanted:
            if not one["can_download"]:
                output.say(f"{one['path']}: {_state(one)}")
    if not ready:
        output.say("There is nothing to download. See “berth job artifacts”.")
        raise typer.Exit(1)


def _found(portal: ApiClient, uid: str, attempt: int) -> list[dict[str, Any]]:
    return sorted(
        portal.every(f"jobs/{uid}/artifacts/", most=20_000, attempt=str(attempt) if attempt else ""),
        key=lambda one: (not one["path"], str(one["path"])),
    )


def _is_closed(portal: ApiClient, uid: str, attempt: int) -> bool:
    found = portal.get(f"jobs/{uid}/")
    tries = [one for one in found["tries"] if attempt in (0, one["number"])]
    return not found["artifacts"] or (bool(tries) and bool(tries[-1]["artifacts_are_closed"]))


def _state(one: dict[str, Any]) -> str:
    if one["left_out"]:
        return str(one["left_out"])
    if one["removed_at"]:
        return f"removed {formatting.when(one['removed_at'])}"
    return f"kept until {formatting.when(one['kept_until'])}" if one["can_download"] else "on its way"


def _target(folder: Path, path: str) -> Path:
    """Return where a file goes: below the folder, whatever a portal may say."""
    parts = PurePosixPath(path).parts
    if not parts or parts[0] == "/" or ".." in parts or not path.isprintable():
        raise typer.BadParameter(f"the portal named a file that is not below a folder: {path!r}")
    target = folder.joinpath(*parts)
    if any(above.is_symlink() for above in (target, *target.parents[: len(parts) - 1])):
        raise typer.BadParameter(f"{target} leads through a link; choose another folder by --to")
    return target


def _fetch(portal: ApiClient, address: str, sha256: str, target: Path) -> None:
    """Write a file whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        fd, part = tempfile.mkstemp(prefix=".berth-", dir=target.parent)
        try:
            digest = hashlib.sha256()
            with open(fd, "wb") as file, portal.download(address) as pieces:
                for piece in pieces:
                    digest.update(piece)
                    file.write(piece)
            if digest.hexdigest() != sha256:
                raise typer.BadParameter(f"{target.name} did not arrive as it was; try again")
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(part, 0o666 & ~umask)
            os.replace(part, target)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(part)
    except OSError as no:
        raise typer.BadParameter(f"{target} cannot be written: {no.strerror}") from no
