"""The SSH server of a lease, as a process on one socket, with asyncssh as the client."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from nodeagent.protocol.ssh import preface

HOST, MINE, OTHER = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(3))


def public(key: asyncssh.SSHKey) -> str:
    return key.export_public_key().decode().strip()


def started(home: Path, *said: bytes) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs:
        env = {
            "HOME": str(home),
            "SHELL": "/bin/sh",
            "PATH": os.environ["PATH"],
            "CUDA_VISIBLE_DEVICES": "MIG-1",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "nodeagent.streams.ssh_session"],
            stdin=theirs, stderr=subprocess.PIPE, env=env | {"PYTHONPATH": os.getcwd()},
        )  # fmt: skip
    ours.sendall(b"".join(said))
    return ours, process


@asynccontextmanager
async def connected(home: Path, key: asyncssh.SSHKey = MINE) -> AsyncIterator[Any]:
    ours, process = started(
        home, preface({"host_key": HOST.export_private_key().decode()}), preface({"keys": [public(MINE)]})
    )
    ours.setblocking(False)
    known = asyncssh.import_known_hosts(f"* {public(HOST)}\n")
    try:
        async with asyncssh.connect(
            "lease",
            sock=ours,
            username="berth",
            client_keys=[key],
            known_hosts=known,
            config=None,
            agent_path=None,
        ) as session:
            yield session
    finally:
        ours.close()
        await asyncio.to_thread(process.wait, 20)
        assert process.stderr is not None
        process.stderr.close()


async def test_commands_terminals_files_and_forwards(tmp_path: Path) -> None:
    async with connected(tmp_path) as session:
        said = await session.run("pwd; echo $CUDA_VISIBLE_DEVICES; cat; exit 7", input="piped\n")
        assert (said.stdout, said.exit_status) == (f"{tmp_path}\nMIG-1\npiped\n", 7)

        killed = await session.run("echo to stderr >&2; kill -9 $$")
        assert (killed.exit_signal[0], killed.stderr) == ("KILL", "to stderr\n")

        command = "head -c 3000000 /dev/zero | tr '\\0' x; tr '\\0' y < /dev/zero | head -c 3000000 >&2"
        for large in await asyncio.gather(*(session.run(command) for _ in range(4))):
            assert (len(large.stdout), len(large.stderr), large.exit_status) == (3_000_000, 3_000_000, 0)

        seen = await session.run("test -t 0 && stty size; exit 3", term_type="xterm", term_size=(101, 33))
        assert (seen.stdout, seen.exit_status) == ("33 101\r\n", 3)

        told = await session.run("echo $LANG $LD_PRELOAD", env={"LANG": "zh_CN.UTF-8", "LD_PRELOAD": "/x"})
        assert told.stdout == "zh_CN.UTF-8\n"

        (tmp_path / "model.bin").write_bytes(b"weights")
        async with session.start_sftp_client() as files:
            await files.get("model.bin", tmp_path / "got.bin")
        assert (tmp_path / "got.bin").read_bytes() == b"weights"

        server = await asyncio.start_server(lambda _reader, writer: writer.write(b"notebook"), "127.0.0.1", 0)
        reader, writer = await session.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        assert await reader.readexactly(8) == b"notebook"
        writer.close()
        server.close()

        with pytest.raises(asyncssh.ChannelListenError):
            await session.forward_remote_port("0.0.0.0", 0, "127.0.0.1", 1)


async def test_a_key_that_was_not_registered_does_not_get_in(tmp_path: Path) -> None:
    with pytest.raises(asyncssh.PermissionDenied):
        async with connected(tmp_path, OTHER):
            raise AssertionError


async def test_programs_are_hung_up_when_the_session_is_gone(tmp_path: Path) -> None:
    async with connected(tmp_path) as session:
        program = await session.create_process(
            "trap 'echo hup > gone; exit' HUP; echo up; while :; do sleep 0.05; done"
        )
        assert await program.stdout.readline() == "up\n"
    async with asyncio.timeout(10):
        while not (tmp_path / "gone").exists():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    "said",
    [b"", b"\xff\xff\xff\xff", preface({"host_key": 1}), preface({}) + preface({"keys": []}), b"\0\0\0\2[]"],
)
def test_a_broken_preface_ends_in_one_line(tmp_path: Path, said: bytes) -> None:
    ours, process = started(tmp_path, said)
    with contextlib.suppress(OSError):
        ours.shutdown(socket.SHUT_WR)
    assert process.wait(20) == 1
    assert process.stderr is not None
    text = process.stderr.read().decode()
    process.stderr.close()
    ours.close()
    assert text.startswith("no SSH session: ")
    assert "Traceback" not in text


# What "berth ssh-proxy" is to ssh: bytes both ways between its pipes and a socket.
PROXY = """
import os, socket, sys, threading
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
def there():
    while data := os.read(0, 65536):
        one.sendall(data)
    one.shutdown(socket.SHUT_WR)
threading.Thread(target=there, daemon=True).start()
while data := one.recv(65536):
    os.write(1, data)
"""


@pytest.mark.skipif(not (shutil.which("ssh") and shutil.which("rsync")), reason="it takes ssh and rsync")
async def test_openssh_and_rsync_of_this_host_bring_files_in_and_out(tmp_path: Path) -> None:
    home, here, key = tmp_path / "home", tmp_path / "here", tmp_path / "key"
    (here / "deep").mkdir(parents=True)
    home.mkdir()
    (here / "deep" / "model.bin").write_bytes(os.urandom(2_000_000))
    (here / "link").symlink_to("deep/model.bin")
    key.write_bytes(MINE.export_private_key())
    key.chmod(0o600)
    (tmp_path / "known").write_text(f"lease {public(HOST)}\n")
    (tmp_path / "proxy.py").write_text(PROXY)
    relays: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours, process = started(
            home, preface({"host_key": HOST.export_private_key().decode()}), preface({"keys": [public(MINE)]})
        )
        inside, outside = await asyncio.open_connection(sock=ours)

        async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
            while data := await source.read(65536):
                to.write(data)
                await to.drain()
            to.close()

        relays.append(asyncio.current_task())  # type: ignore[arg-type]
        await asyncio.gather(copy(reader, outside), copy(inside, writer), return_exceptions=True)
        await asyncio.to_thread(process.communicate)

    async def run(*words: str) -> tuple[int | None, str]:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path
        )
        said, _ = await asyncio.wait_for(process.communicate(), 30)
        return process.returncode, said.decode()

    proxy = tmp_path / "proxy"  # one word for rsync, ssh and the shell, wherever the interpreter is
    proxy.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -I {tmp_path}/proxy.py {tmp_path}/s\n")
    proxy.chmod(0o755)
    ssh = [
        "ssh", "-F", "none", "-i", str(key), "-l", "berth", "-o", "IdentitiesOnly=yes", "-o", "IdentityAgent=none",
        "-o", f"UserKnownHostsFile={tmp_path}/known", "-o", "StrictHostKeyChecking=yes", "-o",
    ]  # fmt: skip
    async with await asyncio.start_unix_server(serve, tmp_path / "s"):
        shell = " ".join(ssh) + f" 'ProxyCommand={proxy}'"
        assert await run("rsync", "-a", "-e", shell, "here/", "lease:data/") == (0, "")
        assert (home / "data" / "deep" / "model.bin").read_bytes() == (
            here / "deep" / "model.bin"
        ).read_bytes()
        assert os.readlink(home / "data" / "link") == "deep/model.bin"
        (home / "data" / "result").write_text("done")
        assert await run("rsync", "-a", "--delete", "-e", shell, "lease:data/", "here/") == (0, "")
        assert (here / "result").read_text() == "done"
        assert await run(*ssh, f"ProxyCommand={proxy}", "lease", "cat data/result; exit 6") == (6, "done")
        await asyncio.gather(*relays)
