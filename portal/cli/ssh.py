"""``berth ssh``: OpenSSH into a lease without a port, and what makes scp, rsync and VS Code find it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from portal.cli import formatting, output
from portal.cli.command import REFUSED, Json, api, guarded

if TYPE_CHECKING:
    from portal.cli.client import ApiClient

SUFFIX = ".berth"
KEY, KNOWN_HOSTS, CONFIG = "berth_ed25519", "berth_known_hosts", "berth_config"
PIECE = 32 * 1024
FAILED = 255  # as ssh itself says it

app = typer.Typer(
    help="Keep the public keys with which you come into leases.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def ssh_keys() -> None:
    """Keep the public keys with which you come into leases."""


@app.command("list")
@guarded
def list_keys(as_json: Json = False) -> None:
    """List your SSH keys."""
    with api() as portal:
        rows = list(portal.every("ssh-keys/"))
    cells = [(r["id"], r["name"], r["fingerprint"], formatting.when(r["created_at"])) for r in rows]
    output.listing(
        rows, ("ID", "NAME", "FINGERPRINT", "ADDED"), cells, empty="You have no SSH keys.", as_json=as_json
    )


@app.command("add")
@guarded
def add(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pub file; “-” reads it from stdin.")],
    name: Annotated[str, typer.Option(help="What you call it (the key's comment).")] = "",
) -> None:
    """Register a public key."""
    try:
        line = sys.stdin.read() if str(file) == "-" else file.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as no:
        raise typer.BadParameter(f"{file} cannot be read: {getattr(no, 'strerror', None) or no}") from no
    with api() as portal:
        row = portal.post("ssh-keys/", {"key": line.strip(), "name": name})
    output.say(f"Added {row['name']}, {row['fingerprint']}.")


@app.command("remove")
@guarded
def remove(
    key: Annotated[int, typer.Argument(metavar="ID", help="As “berth ssh-key list” shows it.")],
) -> None:
    """Forget a key: nobody signs in with it from now on."""
    with api() as portal:
        portal.delete(f"ssh-keys/{key}/")
    output.say("Removed.")


@guarded
def ssh(
    lease: Annotated[str, typer.Argument(metavar="LEASE", help="An active lease of yours (lse-…).")],
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- SSH ARGUMENTS]", help="Options of ssh, or a command to run there."),
    ] = None,
) -> None:
    """Open an SSH session in a lease of yours. A key is made and registered for it the first time."""
    program = shutil.which("ssh")
    if program is None:
        output.say("There is no ssh on this computer. Install OpenSSH's client, or use “berth terminal”.")
        raise typer.Exit(REFUSED)
    name = lease.removesuffix(SUFFIX)
    with api() as portal:
        # What stands against it is said here: of a proxy that ends, ssh says only that the connection was closed.
        portal.post(f"leases/{quote(name, safe='') or '-'}/ssh/")
        identity = _key(portal)
    # ssh takes options behind the host as well as before it.
    where = name + SUFFIX
    done = subprocess.call([program, *_as_options(identity), where, *(words or [])])  # noqa: S603 - the person's own
    raise typer.Exit(done)


@guarded
def config(
    write: Annotated[
        bool, typer.Option("--write", help="Put it where ssh finds it: ~/.ssh/berth_config, included once.")
    ] = False,
) -> None:
    """Print what OpenSSH needs to find your leases: then ssh, scp, rsync and VS Code do by name (lse-….berth)."""
    with api() as portal:
        identity, me = _key(portal) if write else _folder() / KEY, portal.get("me/")["username"]
        leases = [row["id"] for row in portal.every("leases/", state="active", user=me)]
    text = _config(identity, leases)
    if not write:
        output.out_text(text)
        return
    folder = _folder()
    _put(folder / CONFIG, text)
    main, line = folder / "config", f"Include {CONFIG}\n"
    before = main.read_text(encoding="utf-8") if main.exists() else ""
    if line not in before:
        _put(
            main, line + ("\n" + before if before else "")
        )  # an Include counts for all hosts only at the top
    output.say(f"Written to {folder / CONFIG}. Try: ssh {(leases or ['lse-…'])[0]}{SUFFIX}")


@guarded
def proxy(
    host: Annotated[str, typer.Argument(metavar="HOST", help="A lease (lse-…), or lse-….berth.")],
) -> None:
    """Carry one SSH connection on standard input and output: what ssh runs as its ProxyCommand."""
    lease = host.removesuffix(SUFFIX)
    with api() as portal:
        given = portal.post(f"leases/{quote(lease, safe='') or '-'}/ssh/")
    raise typer.Exit(asyncio.run(_carry(given["gateways"], given["ticket"], lease)))


async def _carry(gateways: list[str], ticket: str, lease: str) -> int:
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    for address in gateways:
        with contextlib.suppress(OSError, TimeoutError, WebSocketException):
            async with connect(
                address, compression=None, max_size=1 << 20, open_timeout=10, close_timeout=1
            ) as socket:
                await socket.send(json.dumps({"ticket": ticket}))
                return await _talk(socket, lease)
    output.say("No gateway answers. Try again in a while.")
    return FAILED


async def _talk(socket: Any, lease: str) -> int:
    """Carry bytes until either side ends; returns the exit code."""
    sender: asyncio.Task[None] | None = None
    try:
        async for message in socket:
            if isinstance(message, bytes):
                await asyncio.to_thread(_out, message)
                continue
            word: dict[str, Any] = json.loads(message)
            if word["op"] == "opened":
                _remember(lease, str(word["host_key"]))
                sender = asyncio.create_task(_send(socket))
            elif word["op"] == "end":
                if word["code"] not in ("over", "left"):
                    output.say(REASONS.get(word["code"]) or word["detail"] or f"closed ({word['code']})")
                    return FAILED
                return 0
    finally:
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
    return 0


async def _send(socket: Any) -> None:
    async for data in _typed():
        await socket.send(data)
    await socket.send(json.dumps({"op": "eof"}))


async def _typed() -> AsyncIterator[bytes]:
    loop, stdin = asyncio.get_running_loop(), asyncio.StreamReader(limit=2 * PIECE)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdin), sys.stdin)
    while data := await stdin.read(PIECE):
        yield data


def _out(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _key(portal: ApiClient) -> Path:
    """Return the private key for leases, made and registered if need be."""
    private = _folder() / KEY
    public = private.with_suffix(".pub")
    if not private.exists():
        maker = shutil.which("ssh-keygen")
        if maker is None:
            output.say("There is no ssh-keygen on this computer. Install OpenSSH's client.")
            raise typer.Exit(REFUSED)
        comment = f"berth on {platform.node() or 'this computer'}"
        words = [maker, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(private)]
        subprocess.run(words, check=True)  # noqa: S603 - the person's own program
        output.say(f"Made the key {private} for your leases.")
    portal.post("ssh-keys/", {"key": public.read_text(encoding="utf-8").strip()})
    return private


def _remember(lease: str, host_key: str) -> None:
    """Note the key of a lease's server, which the portal vouched for, so that ssh asks nobody."""
    file, host = _folder() / KNOWN_HOSTS, lease + SUFFIX
    kept = [
        line
        for line in (file.read_text(encoding="utf-8").splitlines() if file.exists() else [])
        if line.split(" ", 1)[0] != host
    ]
    _put(file, "\n".join([*kept[-500:], f"{host} {host_key}"]) + "\n")


def _config(identity: Path, leases: list[str]) -> str:
    names = "".join(f"Host {lease}{SUFFIX}\n" for lease in leases)
    lines = "\n".join(f"  {name} {value}" for name, value in _settings(identity, "%h"))
    return f"# Leases of Berth; “berth ssh-config --write” renews it.\n{names}Host lse-*{SUFFIX}\n{lines}\n"


def _as_options(identity: Path) -> list[str]:
    return [part for name, value in _settings(identity, "%h") for part in ("-o", f"{name}={value}")]


def _settings(identity: Path, host: str) -> list[tuple[str, str]]:
    return [
        ("User", "berth"),
        ("ProxyCommand", f"{_own_command()} ssh-proxy {host}"),
        ("IdentityFile", _quoted(identity)),
        ("UserKnownHostsFile", _quoted(_folder() / KNOWN_HOSTS)),
        ("StrictHostKeyChecking", "yes"),
        ("HostKeyAlgorithms", "ssh-ed25519"),
    ]


def _own_command() -> str:
    """Return how this program is started again, whatever the PATH of whoever runs ssh."""
    program = shutil.which(sys.argv[0]) or shutil.which("berth")
    words = [program] if program else [sys.executable, "-m", "portal.cli.main"]
    return shlex.join(os.path.abspath(word) if index == 0 else word for index, word in enumerate(words))


def _quoted(path: Path) -> str:
    return f'"{path}"' if " " in str(path) else str(path)


def _folder() -> Path:
    folder = Path(os.environ.get("HOME") or Path.home()) / ".ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def _put(file: Path, text: str) -> None:
    """Write a file that nobody else reads, whole or not at all."""
    target = file.resolve()
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    with os.fdopen(
        os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8"
    ) as made:
        made.write(text)
    os.replace(fresh, target)


REASONS = {
    "lease_over": "The lease is over, and its sessions with it. Ask for another one with “berth request”.",
    "too_many_sessions": "This lease has as many SSH connections as it may have. Close some first.",
    "bad_ticket": "The portal's answer came too late to be used. Try again.",
    "unavailable": "The portal cannot check now who you are. Try again in a while.",
    "agent_stopped": "The node's agent restarted, and its sessions ended. Connect again.",
    "signed_out": "Your token is not accepted any more. Sign in with “berth login”.",
    "not_allowed": "You may not enter this lease any more. Ask an admin of its team.",
    "not_open_here": "The node does not have this lease open yet. Try again in a moment.",
    "node_away": "The node cannot be reached now. Try again in a while.",
    "no_ssh": "This node serves no SSH: its agent lacks asyncssh. Use “berth terminal”, and tell your operator.",
    "no_keys": "You have no SSH key in Berth. Add one with “berth ssh-key add ~/.ssh/id_ed25519.pub”.",
}
