"""Any text in any field of the portal's frames: what gets past the codec reaches the host only as plain words."""

from __future__ import annotations

import copy
import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.host.accounts import Account
from nodeagent.host.notices import notice_path, put_up, take_down
from nodeagent.host.shell import Done
from nodeagent.protocol.codec import ProtocolError, decode
from nodeagent.protocol.messages import Desired, SlotAccess
from nodeagent.reconcile.lease_records import NS, new_record
from nodeagent.reconcile.units import grant_of
from nodeagent.runtimes.base import LeaseGrant, Runtime, RuntimeRefusedError
from nodeagent.runtimes.cdi import CdiSpecs
from nodeagent.runtimes.plain import PlainRuntime
from nodeagent.runtimes.unit import SHOWN
from tests.agent.systemd_bench import Host

GOLDEN = Path(__file__).parent / "golden"
UNIT = re.compile(r"berth-(lease|end)-[A-Za-z0-9._-]+")
INJECTIONS = [
    "a\nExecStopPost=+/bin/sh -c 'touch /PWNED'", "-p", "--property=ExecStart=/bin/sh", "..", ".", "../../etc/x",
    "/etc/shadow", "a%n", "a\\x2d", "$(id)", "a;id", "a\x00b", "a\x1b[2J", "a b", "*", "[a]", "root", "",
]  # fmt: skip
WORDS = st.sampled_from(INJECTIONS) | st.text(max_size=70)
# Each option that an agent gives to systemd; a word of the wire must never become one.
OPTIONS = (
    "--quiet", "--collect", "--unit=", "--slice=", "--service-type=", "--description=", "--on-active=",
    "--timer-property=AccuracySec=1s", "--property=", "--setenv=", "--no-block", "--all", "--plain", "--no-legend",
    "--no-pager", "--type=", "--runtime", "--signal=SIGKILL", "--version",
)  # fmt: skip
PROPERTIES = (
    "User=", "WorkingDirectory=-/", "DevicePolicy=closed", "DeviceAllow=/dev/", "DeviceAllow=char-pts", "MemoryMax=",
    "CPUQuota=", "TimeoutStopSec=", "TasksMax=", "KillMode=", "SendSIGHUP=", "Delegate=",
    "NotifyAccess=", "NoNewPrivileges=",
)  # fmt: skip


class Listener:
    """A shell that keeps every word that the host was told."""

    def __init__(self, host: Host) -> None:
        self.words: list[str] = []
        self._shell = host.shell

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
        timeout_s: float = 20,
    ) -> Done:
        self.words += argv
        return self._shell.run(argv, stdin=stdin, env=env, timeout_s=timeout_s)


def texts(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Yield the way to every text of a frame."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from texts(inner, (*path, key))


def spoiled(frame: Any, text: str) -> Iterator[Any]:
    """Yield copies of a frame with one of its texts replaced, each once."""
    for *way, last in texts(frame):
        changed = copy.deepcopy(frame)
        target = changed
        for key in way:
            target = target[key]
        target[last] = text
        yield changed


def anybody(name: str) -> Account:
    """A host that has an account of every name: nothing is refused for want of one."""
    return Account(1001, 1001, "/home/x", name)


def check_words(words: list[str]) -> None:
    for word in words:
        assert word.isprintable(), word
        assert "/.." not in word, word
        if word.startswith("-"):
            assert word.startswith(OPTIONS), word
        if word.startswith("--property="):
            said = word.removeprefix("--property=")
            assert said in SHOWN or said.startswith(PROPERTIES), word
        if word.startswith("--unit="):
            assert UNIT.fullmatch(word.removeprefix("--unit=")), word


def check_files(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert path.name.isprintable()
        assert path.resolve().is_relative_to(folder.resolve())


def open_everywhere(grant: LeaseGrant, folder: Path) -> list[str]:
    """Open and close a lease in every way that there is; returns all words that the host was told."""
    host = Host()
    listener = Listener(host)
    ways: list[Runtime] = [
        PlainRuntime(folder / "run", account=anybody, is_root=False),
        CdiSpecs(folder / "cdi", boot_id="b", is_root=True, pids=list),
        host.agent(account=anybody),
    ]
    ways[-1]._shell = listener  # type: ignore[attr-defined]
    for way in ways:
        try:
            way.open(grant)
            way.open(grant)
            way.close(grant.key, kill=True)
        except RuntimeRefusedError:
            continue
    return listener.words


def grants_of(desired: Desired, folder: Path) -> Iterator[LeaseGrant]:
    for lease in desired.leases:
        work = new_record(lease, 0)
        for place in work.places:
            env = {"CUDA_VISIBLE_DEVICES": place.slot.device}
            place.access = SlotAccess(place.slot.device, 0, "MIG-1", env, ("/dev/nvidia0",))
        notice = notice_path(folder / "notices", lease.lease)
        put_up(notice, lease=lease.lease, why="reclaim", ends_at=datetime.now(UTC))
        take_down(notice, is_over=True)
        yield grant_of(work, NS, str(notice))


@pytest.mark.deep
@settings(max_examples=40, deadline=None)
@given(text=WORDS)
def test_no_text_of_a_desired_state_reaches_the_host_raw(text: str) -> None:
    frame = json.loads((GOLDEN / "desired.json").read_text(encoding="utf-8"))
    for changed in spoiled(frame, text):
        try:
            desired = decode(json.dumps(changed))
        except ProtocolError:
            continue
        assert isinstance(desired, Desired)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for grant in grants_of(desired, folder):
                check_words(open_everywhere(grant, folder))
            check_files(folder)


@settings(max_examples=80, deadline=None)
@given(
    text=WORDS, field=st.sampled_from(["lease", "user", "team", "name", "value", "node", "folder", "bind"])
)
def test_a_grant_that_no_codec_saw_reaches_the_host_as_little(text: str, field: str) -> None:
    """A journal of another version, or a driver that was told nonsense by its device."""
    grant = LeaseGrant(
        lease=text if field == "lease" else "a",
        generation=1,
        user=text if field == "user" else "alice",
        team=text if field == "team" else "vision",
        env={text: "1"} if field == "name" else {"CUDA_VISIBLE_DEVICES": text if field == "value" else "0"},
        nodes=(text,) if field == "node" else ("/dev/nvidia0",),
        ends_in_s=60,
        grace_s=5,
        folders=(text,) if field == "folder" else (),
        binds={"/dev/nvidia0": text} if field == "bind" else {},
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = open_everywhere(grant, folder)
        check_words([word for word in words if not word.startswith("--setenv=CUDA_VISIBLE_DEVICES=")])
        assert all(word.isprintable() for word in words)
        check_files(folder)


@settings(max_examples=40, deadline=None)
@given(text=WORDS)
@pytest.mark.parametrize("name", ["report", "hello", "samples"])
def test_any_text_of_an_agent_is_read_as_text_of_one_line_or_refused(name: str, text: str) -> None:
    frame = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))

    for changed in spoiled(frame, text):
        try:
            message = decode(json.dumps(changed))
        except ProtocolError:
            continue
        assert repr(message).isprintable()
        assert "\\x1b" not in repr(message)
        assert "\\n" not in repr(message)
