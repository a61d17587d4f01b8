"""The first process of a batch job, as its lease's holder: starts the job's command, keeps its output and how it ended.

It outlives the agent that started it, so it is a program of its own: the agent hands it this file's text (nothing
needs to be readable by the holder) and two open files (the holder could replace a path). Standard library only, and
as little of that as will do: a node may start dozens of jobs at once.

``python -I -S -c LOAD STATUS OUTPUT [TOLD FOUND FILES]`` with its code and what to run on stdin, as marshal has them:
compiled by the agent, as the same Python runs both. STATUS is the number of an open file that holds a line once the
job is begun and another once it has ended; its lock (flock) says that this process lives. OUTPUT has a header of one
page, of which the first eight bytes say how much there was in all, then the first bytes of the output, then a ring
with the last ones: however much is printed, the file stays that small. The other three are given where files are to be
collected (collector.py): TOLD is a pipe that closes once STATUS says how the job ended.

Nothing is imported once it has become the holder.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # without the enumerations of signal, which take as long to load as Python itself
import fcntl
import marshal  # json would load regular expressions
import os
import resource  # os.wait4 needs it, and the holder may not be able to read it
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # loading typing would take longer than all the rest
    from typing import Any

HEADER = 4096
PIECE = 65536
RECENT = 16384
NOT_FOUND, NOT_RUNNABLE = 127, 126
MASKED = b"***"


class Output:
    """Writes what a job prints, masked, at most so fast, into a file of bounded size."""

    def __init__(
        self, fd: int, head: int, tail: int, rate: int, burst: int, masks: list[str], now: float
    ) -> None:
        self.fd, self.head, self.tail, self.rate, self.burst = fd, head, tail, rate, burst
        self.masks = sorted((m.encode() for m in masks if m), key=len, reverse=True)
        self.total, self.held, self.room, self.at = 0, b"", float(burst), now
        self.left_out_lines = self.left_out_bytes = 0
        self.recent = b""
        self.without_room = 0

    def take(self, data: bytes, now: float) -> None:
        """Keep what was printed, as far as the rate allows; lines beyond it are counted and left out."""
        self.room, self.at = min(self.burst, self.room + (now - self.at) * self.rate), now
        data = self._masked(data)
        if self.left_out_bytes and self.room < self.burst // 4:
            self._leave_out(data)
            return
        self._say_left_out()
        if len(data) <= self.room:
            self._put(data)
            return
        fits = data.rfind(b"\n", 0, int(self.room)) + 1
        self._put(data[:fits])
        self._leave_out(data[fits:])

    def finish(self) -> None:
        """Keep what was held back, and say what was left out."""
        held, self.held = self.held, b""
        if held and not self.left_out_bytes:
            self._put(held)
        self._say_left_out()
        self._put(b"")

    def _masked(self, data: bytes) -> bytes:
        """Return output without the values of secrets; an end that may begin one is held back until more comes."""
        if not self.masks:
            return data
        data = self.held + data
        for mask in self.masks:
            data = data.replace(mask, MASKED)
        keep = 0
        for mask in self.masks:
            for length in range(min(len(mask) - 1, len(data)), keep, -1):
                if data.endswith(mask[:length]):
                    keep = length
                    break
        self.held = data[len(data) - keep :] if keep else b""
        return data[: len(data) - keep]

    def _leave_out(self, data: bytes) -> None:
        """Count what is left out; its end is remembered, as why a job fails is mostly said last."""
        self.left_out_lines += data.count(b"\n")
        self.left_out_bytes += len(data)
        self.recent = (self.recent + data)[-RECENT:]

    def _say_left_out(self) -> None:
        if not self.left_out_bytes:
            return
        recent, self.recent = self.recent, b""
        if len(recent) < self.left_out_bytes:
            recent = recent[recent.find(b"\n") + 1 :]
        self.left_out_lines -= recent.count(b"\n")
        self.left_out_bytes -= len(recent)
        if not self.left_out_bytes:
            self.left_out_lines = 0
            self._put(recent)
            return
        what = f"{self.left_out_lines} lines" if self.left_out_lines else f"{self.left_out_bytes} bytes"
        self.left_out_lines = self.left_out_bytes = 0
        self._put((f"\n… {what} left out: printed faster than is kept\n").encode() + recent)

    def _put(self, data: bytes) -> None:
        self.room -= len(data)
        size, lost = len(data), self.without_room
        if lost:
            data = f"\n… {lost} bytes left out: the node's disk was full\n".encode() + data
        while data:
            at, most = self._place()
            try:
                done = os.pwrite(self.fd, data[:most], at)
            except OSError:  # the job goes on, and its end is told all the same
                self.without_room = min(size, len(data)) + (lost if len(data) > size else 0)
                break
            data = data[done:]
            self.total += done
        else:
            self.without_room = 0
        try:  # noqa: SIM105 - contextlib takes longer to load than the rest
            os.pwrite(self.fd, self.total.to_bytes(8, "big"), 0)
        except OSError:
            pass

    def _place(self) -> tuple[int, int]:
        """Return where the next byte goes, and how many fit there."""
        if self.total < self.head:
            return HEADER + self.total, self.head - self.total
        within = (self.total - self.head) % self.tail
        return HEADER + self.head + within, self.tail - within


def say(fd: int, **facts: Any) -> None:
    """Add a line to the status: a JSON object."""
    os.write(
        fd, ("{" + ", ".join(f'"{name}": {literal(value)}' for name, value in facts.items()) + "}\n").encode()
    )


def literal(value: bool | int | str | None) -> str:
    """Return a value as JSON has it."""
    if isinstance(
        value, str
    ):  # without a codec: those are files too, which the holder may not be able to read
        return '"' + "".join(c if c.isalnum() and c.isascii() else escaped(ord(c)) for c in value) + '"'
    return "null" if value is None else str(value).lower()


def escaped(code: int) -> str:
    """Return a character as JSON has it in ASCII: two of them for one beyond the first 65,536."""
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD7C0 + (code >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"


def begin(spec: dict[str, Any], writer: int) -> int:
    """Start the command; returns its pid, or raises OSError with the word that cannot be run as its filename.

    The variables of a container go in by an open file: in a command line everybody on the host could read them.
    """
    env = {**os.environ, **spec["env"]}
    os.environ["PATH"] = env.get("PATH", "/usr/bin:/bin")  # by which posix_spawnp looks
    words = spec["words"]
    if spec.get("inside") is not None:
        inside, own = os.memfd_create("berth-env", 0), spec["own"]
        os.write(inside, "".join(f"{name}={value}\n" for name, value in spec["inside"].items()).encode())
        os.lseek(inside, 0, os.SEEK_SET)
        words = [word.replace("@env-file@", f"/proc/self/fd/{inside}") for word in words[:own]] + words[own:]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, writer, 1),
        (os.POSIX_SPAWN_DUP2, writer, 2),
    ]
    usual = [
        signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
    ]  # fmt: skip
    return os.posix_spawnp(words[0], words, env, file_actions=actions, setsid=True, setsigdef=usual)


def act_as(whom: list[int] | None) -> None:
    """Touch files as somebody else from now on; back to root for root."""
    if whom is not None:
        os.seteuid(0)
        os.setegid(whom[1])
        os.seteuid(whom[0])


def drop_rights(spec: dict[str, Any]) -> None:
    """Become who the job runs as; one whose command needs root touches the holder's folders as the holder alone."""
    if spec.get("serves"):
        os.setgroups([])
    if spec.get("become"):
        uid, gid = spec["become"]
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)


def is_first(status: int) -> bool:
    """Say whether this process is to run the job: nobody does, and no agent decided that it never began."""
    try:
        fcntl.flock(status, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return not os.fstat(status).st_size


class StopSignals:
    """What the agent asks of the job: to stop (SIGTERM), or to be ended at once (SIGUSR1)."""

    def __init__(self) -> None:
        self.child = 0
        self.is_asked = False
        signal.signal(signal.SIGTERM, self._ask)
        signal.signal(signal.SIGUSR1, self._kill)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def begin(self, child: int) -> None:
        """Pass on what is asked from now on, and what was asked before there was somebody to ask."""
        self.child = child
        if self.is_asked:
            self._send(signal.SIGTERM)

    def _ask(self, _number: int, _frame: object) -> None:
        self.is_asked = True
        self._send(signal.SIGTERM)

    def _kill(self, _number: int, _frame: object) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        if self.child:
            try:  # noqa: SIM105 - contextlib takes longer to load than the rest
                os.killpg(self.child, number)
            except OSError:
                pass


def main() -> int:
    """Run one job to its end; whatever happens to it is said in the status."""
    status, fd, *collecting = map(int, sys.argv[1:])
    for each in (status, fd, *collecting):
        os.set_inheritable(each, False)
    try:
        spec = marshal.load(sys.stdin.buffer)  # noqa: S302 - the agent's own
    except EOFError:  # it stood by for a job that did not come
        return 0
    program: dict[str, Any] = {"__name__": "collector"}
    if collecting:  # now, as what it imports may be out of the holder's reach too
        exec(spec["artifacts"]["program"], program)  # noqa: S102 - the agent's own
    drop_rights(spec)
    if not is_first(status):
        return 3
    start = time.monotonic()
    out = Output(fd, spec["head"], spec["tail"], spec["rate"], spec["burst"], spec["masks"], start)
    signals = StopSignals()
    say(status, runner=os.getpid())
    reader, writer = os.pipe()
    folder = os.path.join(os.path.expanduser("~"), os.path.expanduser(spec["workdir"]))
    serves = spec.get("serves")
    try:
        act_as(serves)
        os.chdir(folder)
        root = os.open(".", os.O_RDONLY | os.O_DIRECTORY) if collecting else -1
    except OSError as no:
        out.take((f"berth: cannot work in {folder}: {no.strerror}\n").encode(), start)
        say(status, exit=NOT_RUNNABLE, why="workdir", word=folder[:200], ran_ms=0)
        return 0
    act_as(serves and [0, 0])
    try:
        child = begin(spec, writer)
    except OSError as no:
        word = spec["words"][0]
        out.take((f"berth: cannot run {word}: {no.strerror}\n").encode(), start)
        code = NOT_FOUND if isinstance(no, FileNotFoundError) else NOT_RUNNABLE
        say(status, exit=code, why="command", word=word[:200], ran_ms=0)
        return 0
    os.close(writer)
    say(status, child=child)
    signals.begin(child)
    os.chdir("/")
    ended, usage = follow(child, reader, out)
    signals.child = 0
    out.finish()
    code = os.waitstatus_to_exitcode(ended)
    say(
        status,
        exit=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        peak_kib=usage.ru_maxrss,
        ran_ms=int((time.monotonic() - start) * 1000),
        asked=signals.is_asked,
    )
    if collecting:  # its end has been told: nobody pays for this any more
        act_as(serves)
        collect(spec["artifacts"], program["Collector"], collecting, root)
    return 0


def collect(wish: dict[str, Any], collector: Any, given: list[int], root: int) -> None:
    """Keep what the job's patterns name below ``root``, for the agent to send; as whom is settled."""
    told, found, files = given
    os.close(told)
    until = time.monotonic() + wish["within_s"]
    collector(found, files, wish["most_bytes"], wish["most_files"], until).collect(root, wish["patterns"])


def follow(child: int, reader: int, out: Output) -> tuple[int, resource.struct_rusage]:
    """Keep what the job prints until its first process has ended; returns how it ended, and what it used."""
    os.set_blocking(reader, False)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    exits = os.pidfd_open(child)
    poll.register(exits, select.POLLIN)
    has_ended = False
    while not has_ended:
        has_ended = any(ready == exits for ready, _event in poll.poll())
        if drained(reader, out) and not has_ended:  # all who could print have closed it
            poll.unregister(reader)
            poll.poll()
            has_ended = True
    _pid, ended, usage = os.wait4(child, 0)
    return ended, usage


def drained(reader: int, out: Output) -> bool:
    """Keep what is there now; says whether nothing can come any more."""
    while True:
        try:
            data = os.read(reader, PIECE)
        except BlockingIOError:
            return False
        except InterruptedError:
            continue
        if not data:
            return True
        out.take(data, time.monotonic())


if __name__ == "__main__":
    # Nothing is left to be written, and taking Python down would take a tenth as long as starting it.
    os._exit(main())
