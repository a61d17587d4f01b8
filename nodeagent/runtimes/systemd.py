"""Leases as transient units of systemd: the unit's cgroup is the boundary, its end holds without the agent.

One service per generation of a lease in ``berth.slice``. It runs as its holder, may open the device nodes of its
partitions and no others, and keeps one process that does nothing; whoever enters (nodeagent/commands/enter.py) is moved
into the same cgroup, so that one limit on memory, CPU and device memory binds all of a lease together.

Its end is a timer of systemd, not RuntimeMaxSec: no documented call lengthens that on a running unit, and a
daemon-reload takes GPUs from containers that got them by the legacy hook. The timer's name carries the second
of the monotonic clock at which it fires, so it can be re-read; a new one is started before the old one is stopped.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Final

from nodeagent.host.accounts import Account, account_of
from nodeagent.host.files import Exists, Folders, Read, Write, read_text, subfolders, write_text
from nodeagent.host.shell import Done, ProgramError, Shell
from nodeagent.protocol.forms import is_line
from nodeagent.runtimes import nodes
from nodeagent.runtimes import unit as units
from nodeagent.runtimes.base import (
    ISOLATED,
    RUNTIME,
    UNIT,
    Key,
    LeaseEntrance,
    LeaseGrant,
    RuntimeRefusedError,
    require_harmless,
)
from nodeagent.runtimes.cgroups import ROOT, Cgroups
from nodeagent.runtimes.names import (
    END_PREFIX,
    SERVICE,
    SLICE,
    TIMER,
    UNIT_PREFIX,
    end_of,
    harmless,
    key_of_end,
    key_of_unit,
    stem_of,
    unit_of,
)

LEAST_VERSION: Final = 240  # Type=exec, and device rules for nodes that /dev/char does not list
# What systemd takes for User= in its relaxed mode, directories included; nothing that it would expand.
ACCOUNT: Final = re.compile(r"[^\W\d][^\s:/%]{0,254}")
SAME_END_S: Final = 2  # seconds by which frames of the portal may disagree about the same end
VERSION = re.compile(r"systemd (\d+)")


class SystemdRuntime:
    """Opens leases as units. Nothing is remembered here: every question is asked of systemd and the kernel."""

    name = "systemd"
    is_isolating = True

    def __init__(
        self,
        shell: Shell,
        *,
        read: Read = read_text,
        write: Write = write_text,
        folders: Folders = subfolders,
        exists: Exists = os.path.exists,
        account: Callable[[str], Account] = account_of,
        clock_s: Callable[[], float] = time.monotonic,
        is_root: bool | None = None,
    ) -> None:
        """Take the doors to the host; ``clock_s`` is its monotonic clock, as timers of systemd use it."""
        self._shell = shell
        self._read = read
        self._write = write
        self._exists = exists
        self._account = account
        self._clock_s = clock_s
        self._is_root = os.geteuid() == 0 if is_root is None else is_root
        self._cgroups = Cgroups(read, folders, exists)
        self._why_not: str | None = None

    def why_not(self) -> str:
        """Return what is missing for units on this host, "" when they can be used."""
        if self._why_not is None:
            self._why_not = self._missing()
        return self._why_not

    def open(self, grant: LeaseGrant) -> LeaseEntrance:
        """Start the lease's unit, or bring the one that runs up to date; its end is armed before it starts.

        Device nodes that are missing are made where that can be done.
        """
        require_harmless(grant)
        if not self.why_not() and (missing := self._missing_nodes(grant)):
            nodes.make(missing, self._read, self._shell)
        account = self._admit(grant)
        unit = unit_of(grant.key)
        shown = self.show(grant.key)
        if shown.state == "deactivating":
            raise RuntimeRefusedError("closing", f"{unit} is still ending; wait for it", is_passing=True)
        is_open = shown.state in ("active", "activating")
        if not is_open and grant.ends_in_s <= 0:
            raise RuntimeRefusedError("ended", f"lease {grant.lease} is over, it is not opened again")
        if is_open and shown.words.get("User") != account.name:
            raise RuntimeRefusedError(
                "unit_differs",
                f"{unit} runs as {shown.words.get('User') or 'root'}, not as {account.name}; close the lease first",
            )
        self._arm(grant)
        if not is_open:
            self._start(grant, account, has_failed=shown.state == "failed")
        elif units.differs(shown, grant):
            self._must("systemctl", "set-property", "--runtime", unit, *units.limits(grant))
        cgroup = f"{ROOT}{_path_of(grant.key)}" if self._cgroups.is_unified else ""
        return LeaseEntrance({RUNTIME: self.name, UNIT: unit, ISOLATED: "yes"}, cgroup)

    def would_refuse(self, grant: LeaseGrant) -> RuntimeRefusedError | None:
        """Return what units, account or device nodes of this host lack for a grant."""
        try:
            self._admit(grant)
        except RuntimeRefusedError as no:
            return no
        return None

    def close(self, key: Key, *, kill: bool) -> None:
        """End the unit: SIGTERM now and SIGKILL after its grace, by systemd itself; with ``kill`` at once."""
        unit = unit_of(key)
        if kill:
            self._kill_cgroup(key)
            self._run("systemctl", "kill", "--signal=SIGKILL", unit)
        stopped = self._run("systemctl", "stop", "--no-block", unit, *self._ends(key))
        if kill:
            self._run("systemctl", "reset-failed", unit)
        if not stopped.is_ok and self.show(key).state in ("active", "activating"):
            raise RuntimeRefusedError("systemd", f"{unit} was not stopped: {stopped.said}", is_passing=True)

    def pids(self, key: Key) -> list[int]:
        """Return the processes in the unit's cgroup and below it."""
        return self._cgroups.pids(_path_of(key))

    def known(self) -> list[Key]:
        """Return every lease whose unit systemd knows, in any state but gone."""
        units_now = self._units("service", f"{UNIT_PREFIX}*{SERVICE}")
        return sorted({key for unit in units_now if (key := key_of_unit(unit)) is not None})

    def whole(self) -> list[Key]:
        """Return the same: there is one way in."""
        return self.known()

    def lease_of(self, pid: int) -> Key | None:
        """Return the lease in whose unit a process runs. Only its place right below our slice counts:
        inside its own unit anybody may name a cgroup like somebody else's."""
        path = self._cgroups.path_of(pid) or ""
        head, _, rest = path.removeprefix("/").partition("/")
        return key_of_unit(rest.partition("/")[0]) if head == SLICE else None

    def show(self, key: Key) -> units.UnitProperties:
        """Return the lease's unit as systemd knows it now; one that it has not is inactive."""
        words = [f"--property={name}" for name in units.SHOWN]
        return units.parse(self._must("systemctl", "show", *words, unit_of(key)).out)

    def _missing(self) -> str:
        if not self._is_root:
            return (
                "only root may open units for other people; start the agent by its unit (berth-agent install)"
            )
        try:
            first = self._read("/proc/1/comm").strip()
        except OSError:
            first = ""
        if first != "systemd":
            return f"this host was not started by systemd (its first process is {first or 'unknown'})"
        try:
            said = self._shell.run(["systemctl", "--version"]).out
        except ProgramError as no:
            return str(no)
        found = VERSION.search(said)
        if found is None or int(found[1]) < LEAST_VERSION:
            version = found[1] if found else "unknown"
            return f"systemd {LEAST_VERSION} or later is needed, this host has {version}; upgrade it"
        return ""

    def _admit(self, grant: LeaseGrant) -> Account:
        """Return the holder's account where a unit can be opened for it; changes nothing."""
        if self.why_not():
            raise RuntimeRefusedError("no_systemd", self.why_not())
        require_harmless(grant)
        account = self._holder(grant)
        self._require_nodes(grant)
        return account

    def _holder(self, grant: LeaseGrant) -> Account:
        """Return the account by the host's own words: what the portal calls its holder only finds it."""
        try:
            found = self._account(grant.user)
        except LookupError as no:
            raise RuntimeRefusedError("no_account", str(no.args[0] if no.args else no)) from no
        if not (ACCOUNT.fullmatch(found.name) and is_line(found.name + found.home)):
            raise RuntimeRefusedError(
                "no_account", f"the account {found.name!r} cannot have a unit; rename it"
            )
        return found

    def _require_nodes(self, grant: LeaseGrant) -> None:
        """Refuse a node that is not there: systemd would leave its rule out and say so only in its log."""
        missing = self._missing_nodes(grant)
        if missing:
            raise RuntimeRefusedError(
                "no_node",
                f"{', '.join(missing)} does not exist on this host; {nodes.advice(missing, self._read)}",
                is_passing=True,
            )

    def _missing_nodes(self, grant: LeaseGrant) -> list[str]:
        return [node for node in grant.nodes if not self._exists(node)]

    def _arm(self, grant: LeaseGrant) -> None:
        """See to it that exactly one timer ends the lease, and at its end."""
        due = int(self._clock_s()) + max(grant.ends_in_s, 1)
        ends = self._ends(grant.key)
        kept = next((end for end in ends if abs(_due_of(end) - due) <= SAME_END_S), None)
        if kept is None:
            name = end_of(grant.key, due)
            kept = f"{name}{TIMER}"
            self._must(
                "systemd-run", "--quiet", "--collect", f"--unit={name}",
                f"--description=End of Berth's lease {harmless(grant.lease)}",
                f"--on-active={max(grant.ends_in_s, 1)}s", "--timer-property=AccuracySec=1s",
                "systemctl", "stop", "--no-block", unit_of(grant.key),
            )  # fmt: skip
        old = [end for end in ends if end != kept]
        if old:
            self._run("systemctl", "stop", *old)

    def _start(self, grant: LeaseGrant, account: Account, *, has_failed: bool) -> None:
        unit = unit_of(grant.key)
        if has_failed:
            self._run("systemctl", "reset-failed", unit)
        given = [f"--property={one}" for one in units.properties(grant, account)]
        env = [f"--setenv={name}={value}" for name, value in sorted(grant.env.items())]
        self._must(
            "systemd-run", "--quiet", "--collect", f"--unit={unit}", f"--slice={SLICE}", "--service-type=exec",
            f"--description=Berth's lease {harmless(grant.lease)} of {account.name}",
            *given, *env, *units.HOLDER,
        )  # fmt: skip

    def _kill_cgroup(self, key: Key) -> None:
        """End the whole subtree in one step of the kernel (5.14 and later): no fork can outrun it."""
        if not self._cgroups.is_unified:
            return
        try:
            self._write(f"{ROOT}{_path_of(key)}/cgroup.kill", "1")
        except OSError:
            return  # an older kernel, or gone: systemctl kill has reached everybody it could

    def _ends(self, key: Key) -> list[str]:
        """Return the timers that end this lease."""
        found = self._units("timer", f"{END_PREFIX}{stem_of(key)}-*{TIMER}")
        return [name for name in found if (end := key_of_end(name)) is not None and end[0] == key]

    def _units(self, kind: str, pattern: str) -> list[str]:
        said = self._must(
            "systemctl",
            "list-units",
            "--all",
            "--plain",
            "--no-legend",
            "--no-pager",
            f"--type={kind}",
            pattern,
        ).out
        rows = [line.lstrip("● *").split() for line in said.splitlines()]
        return [row[0] for row in rows if len(row) >= 4 and row[2] != "inactive"]

    def _run(self, *words: str) -> Done:
        try:
            return self._shell.run(words)
        except ProgramError as no:
            raise RuntimeRefusedError("systemd", str(no), is_passing=True) from no

    def _must(self, *words: str) -> Done:
        done = self._run(*words)
        if not done.is_ok:
            raise RuntimeRefusedError("systemd", f"{_verb(words)} failed: {done.said}", is_passing=True)
        return done


def _path_of(key: Key) -> str:
    return f"/{SLICE}/{unit_of(key)}"


def _due_of(timer: str) -> int:
    end = key_of_end(timer)
    return end[1] if end is not None else 0


def _verb(words: Sequence[str]) -> str:
    return " ".join(words[:2]) if words[0] == "systemctl" else words[0]
