"""One SSH connection, served by a process of the lease's holder inside the lease.

The agent starts it with a socket as its standard input, on which nobody but the agent and the portal's gateway can
write. Two prefaces come first: the agent's, with the private key of this server (``host_key``), and the gateway's, with
the public keys that the holder registered (``keys``). Everything else is SSH as OpenSSH speaks it: shells,
commands, SFTP and scp, forwards to what listens inside the lease. There is no port, no PAM and no other account: this
process is the holder already, and can become nobody else. asyncssh carries the protocol; a host without it serves no
SSH and says so (extra ``ssh``).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from nodeagent.host.terminal import on_terminal
from nodeagent.protocol.ssh import HEAD, MOST_PREFACE
from nodeagent.workloads.inside import JoinError, join, place_of

if TYPE_CHECKING:
    import asyncssh

SAID_WITHIN_S: Final = 10
SIGN_IN_WITHIN_S: Final = 60
# Somebody whose laptop sleeps is away for a while; the gateway's own pings end a socket that is dead.
ASK_EVERY_S: Final = 60
NOT_FOUND: Final = 127
LAST_WORDS_S: Final = 5.0
COPIED_AT_ONCE: Final = 32 << 10  # bytes; what asyncssh puts in one packet


def read_preface(end: socket.socket) -> dict[str, Any]:
    """Hear one on a blocking socket; raises ValueError for anything else, EOFError when nobody is there."""
    (size,) = HEAD.unpack(_exactly(end, HEAD.size))
    if size > MOST_PREFACE:
        raise ValueError(f"a preface of {size} bytes")
    said = json.loads(_exactly(end, size))
    if not isinstance(said, dict):
        raise ValueError("a preface is one JSON object")
    return said


def main(words: Sequence[str]) -> int:
    """Serve the connection on standard input until it ends, as the given account where there is one (``[UID GID]``), or
    in the lease's container (``PLACE``, nodeagent.workloads.inside).

    Returns the exit code.
    """
    try:
        end = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    except OSError:
        sys.stderr.write("this is started by the agent, with a socket as its input; use “berth ssh”\n")
        return 2
    if words:
        # Where these lie cannot be read later, by another account or in an image: what is loaded late is loaded now.
        for name in ("asyncssh", "concurrent.futures.thread", "encodings.idna"):
            import_module(name)
    if len(words) == 1:
        try:
            inside = join(place_of(words[0]))
            os.environ.clear()
            os.environ.update(inside)
        except JoinError as no:
            sys.stderr.write(f"no SSH session: {no}\n")
            return 1
    elif len(words) == 2:
        os.setgroups([])
        os.setresgid(*[int(words[1])] * 3)
        os.setresuid(*[int(words[0])] * 3)
    try:
        end.settimeout(SAID_WITHIN_S)
        host_key = str(read_preface(end)["host_key"])
        keys = [str(line) for line in read_preface(end)["keys"]]
    except (OSError, EOFError, ValueError, LookupError, TypeError) as no:
        sys.stderr.write(f"no SSH session: {no!r}\n")
        return 1
    with contextlib.suppress(OSError):
        os.chdir(os.environ.get("HOME", "/"))
    end.setblocking(False)
    # A login would set PATH anew, without what the image brings.
    return asyncio.run(serve(end, host_key, keys, is_login=len(words) != 1))


async def serve(end: socket.socket, host_key: str, keys: Sequence[str], *, is_login: bool = True) -> int:
    """Speak SSH on a connected socket as the server of this private key, for whoever has the private part of one of
    these public ones; returns 0 when it ended, 1 when nobody could sign in.
    """
    import asyncssh

    class Server(asyncssh.SSHServer):
        """Lets in whoever holds one of the keys, under any name: there is one account."""

        def begin_auth(self, username: str) -> bool:
            return True

        def connection_requested(self, *_where: object) -> bool:
            return True  # as the holder, to what this process can reach anyway

        def server_requested(self, listen_host: str, _port: int) -> bool:
            return listen_host in ("", "localhost", "127.0.0.1", "::1")

        def unix_connection_requested(self, _path: str) -> bool:
            return True

        def unix_server_requested(self, _path: str) -> bool:
            return True

    class Files(asyncssh.SFTPServer):
        """Files as the holder sees them; says at the end that all went well, or scp takes it for a failure."""

        def exit(self) -> None:
            self.channel.exit(0)

    try:
        connection = await asyncssh.run_server(
            end,
            server_factory=Server,
            server_host_keys=[asyncssh.import_private_key(host_key)],
            authorized_client_keys=asyncssh.import_authorized_keys("\n".join(keys)),
            password_auth=False,
            kbdint_auth=False,
            host_based_auth=False,
            gss_host=None,
            agent_forwarding=True,
            process_factory=partial(_program, is_login=is_login),
            sftp_factory=Files,
            allow_scp=True,
            line_editor=False,
            encoding=None,
            login_timeout=SIGN_IN_WITHIN_S,
            keepalive_interval=ASK_EVERY_S,
        )
    except (asyncssh.Error, OSError) as no:
        sys.stderr.write(f"no SSH session: {no}\n")
        return 1
    await connection.wait_closed()
    return 0


async def _program(asked: asyncssh.SSHServerProcess[bytes], *, is_login: bool) -> None:
    """Run the holder's shell, or one command by it, as sshd does."""
    shell = os.environ.get("SHELL") or pwd.getpwuid(os.geteuid()).pw_shell or "/bin/sh"
    words = [shell, "-c", asked.command] if asked.command else [shell, *(["-l"] if is_login else [])]
    env = os.environ | {name: value for name, value in asked.env.items() if _may_be_sent(name)}
    try:
        if asked.term_type:
            status = await _on_terminal(asked, words, env | {"TERM": asked.term_type})
        else:
            status = await _on_pipes(asked, words, env)
    except OSError as no:
        asked.stderr.write(f"{shell} cannot be run: {no.strerror}\n".encode())
        status = NOT_FOUND
    if status >= 0:
        asked.exit(status)
    else:
        name = signal.Signals(-status).name.removeprefix("SIG")
        asked.exit_with_signal(name, False, "")
    await asked.wait_closed()


async def _on_pipes(asked: asyncssh.SSHServerProcess[bytes], words: list[str], env: dict[str, str]) -> int:
    program = await asyncio.create_subprocess_exec(
        *words,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        start_new_session=True,
    )
    with _ended_with(asked, program):
        # The end of output is said together with the status: a client may close as soon as it hears of it.
        await asked.redirect(stdin=program.stdin, send_eof=False)
        await asyncio.gather(_copy(program.stdout, asked.stdout), _copy(program.stderr, asked.stderr))
        return await program.wait()


async def _copy(source: asyncio.StreamReader | None, to: asyncssh.SSHWriter[bytes]) -> None:
    """Pass on output until it ends or nobody is there to hear it, no faster than it is taken.

    ``redirect`` of asyncssh 2.24 begins a second read of the same stream where a client that was slow for a moment
    catches up while the first still waits, and drops the connection: output was lost.
    """
    import asyncssh

    assert source is not None
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(COPIED_AT_ONCE):
            to.write(data)
            await to.drain()


async def _on_terminal(asked: asyncssh.SSHServerProcess[bytes], words: list[str], env: dict[str, str]) -> int:
    ours, theirs = os.openpty()
    columns, rows, *_pixels = asked.term_size
    try:
        termios.tcsetwinsize(theirs, (rows or 24, columns or 80))  # before any program asks for it
        name = os.ttyname(theirs)
        program = await asyncio.create_subprocess_exec(
            *on_terminal(name, words),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=env | {"SSH_TTY": name},
            start_new_session=True,
        )
    except BaseException:
        os.close(ours)
        raise
    finally:
        os.close(theirs)
    with _ended_with(asked, program):
        await asked.redirect(os.dup(ours), ours, send_eof=False)
        status = await program.wait()
        with contextlib.suppress(TimeoutError):  # a program in the background may hold the terminal for ever
            async with asyncio.timeout(LAST_WORDS_S):
                await asked.stdout.drain()
        return status


@contextlib.contextmanager
def _ended_with(
    asked: asyncssh.SSHServerProcess[bytes], program: asyncio.subprocess.Process
) -> Iterator[None]:
    """Hang up on a program when whoever asked for it is gone, as a terminal does."""
    gone = asyncio.get_running_loop().create_task(asked.channel.wait_closed())

    def hang_up(_: object) -> None:
        if program.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGHUP)

    gone.add_done_callback(hang_up)
    try:
        yield
    finally:
        gone.remove_done_callback(hang_up)
        gone.cancel()


def _may_be_sent(name: str) -> bool:
    """Let a client say its language, as sshd does on Debian; what names devices is the lease's."""
    return name in ("LANG", "LANGUAGE", "COLORTERM", "TZ") or name.startswith("LC_")


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = end.recv(size - len(data))
        if not piece:
            raise EOFError("nobody said which keys may sign in")
        data += piece
    return data


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
