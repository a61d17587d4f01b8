"""``berth-agent install``: the files of systemd that an agent needs on its host, shown first, written when asked.

By default nothing is changed: the files are printed, with what would change. Logins are closed to the devices only
by ``--close-logins``, since that changes what everybody's session may open (docs/access.md).
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG, S_ISVTX
from typing import Final

from nodeagent.commands.enter import SAFE_PATH
from nodeagent.host.files import Read, put, read_text
from nodeagent.host.sandbox import PLAIN_PATH, unseen
from nodeagent.host.shell import HostShell, ProgramError, Shell
from nodeagent.runtimes.names import SLICE

OK: Final = 0
FAILED: Final = 1
UNITS: Final = "/etc/systemd/system"
# Where a package of the distribution puts its units; what lies in UNITS goes before them.
PACKAGED: Final = "/usr/lib/systemd/system"
AGENT_UNIT: Final = "berth-agent.service"
AGENT_FILE: Final = f"{UNITS}/{AGENT_UNIT}"
SLICE_FILE: Final = f"{UNITS}/{SLICE}"
LOGIN_FILE: Final = f"{UNITS}/user-.slice.d/50-berth.conf"
ROOT_FILE: Final = f"{UNITS}/user-0.slice.d/50-berth.conf"
SETTINGS_FILE: Final = "/etc/berth/agent.env"
SUDOERS_FILE: Final = "/etc/sudoers.d/berth"
MODE: Final = 0o644
SCRIPT: Final = "berth-agent"
OTHERS_WRITE: Final = 0o022

# Classes of /proc/devices that belong to accelerators: NVIDIA, AMD, Hygon, Cambricon, Ascend (whose devices and
# vNPUs are of the classes devdrv-cdev and vdevdrv-cdev, as Huawei's device plugin looks them up).
ACCELERATORS: Final = (
    "nvidia", "kfd", "mkfd", "hycu", "cambricon", "davinci", "devdrv", "vdevdrv", "devmm", "hisi_hdc",
)  # fmt: skip
# On hosts with these, DRM render nodes are accelerators too.
RENDERING: Final = ("kfd", "mkfd", "hycu")
# Of hosts whose tool writes a file per share into a folder, which must be there before the unit starts.
HYGON: Final = ("mkfd", "hycu")
SHARES_FOLDER: Final = "/etc/vdev"
ALWAYS: Final = ("/dev/tty", "/dev/ptmx", "/dev/console", "char-pts", "char-tty")

AGENT_TEXT: Final = """\
# As berth-agent install or its package wrote it; put changes into berth-agent.service.d/*.conf.
[Unit]
Description=Berth's agent: makes GPU leases real on this host
Wants=network-online.target
After=network-online.target nvidia-persistenced.service
# Monitors hold devices open, which keeps those of Ampere from switching MIG: where installed, they start later.
Before=nvidia-dcgm.service dcgm.service dcgm-exporter.service nvidia_gpu_exporter.service
StartLimitIntervalSec=0

[Service]
Type=exec
EnvironmentFile=-{settings}
Environment=BERTH_STATE_DIR=/var/lib/berth-agent BERTH_RUN_DIR=/run/berth-agent
ExecStart={program}
Restart=always
RestartSec=5
# Leases have units of their own; MPS daemons live here and must outlive an upgrade of the agent.
KillMode=process
Delegate=yes
OOMScoreAdjust=-900
StateDirectory=berth-agent
StateDirectoryMode=0700
# Holders reach their own files in here by name; a reboot empties it, a restart must not.
RuntimeDirectory=berth-agent
RuntimeDirectoryMode=0711
RuntimeDirectoryPreserve=yes
# ProtectClock and PrivateDevices would take the devices away, ProtectControlGroups the right to kill a cgroup,
# ProtectKernelModules what nvidia-modprobe does.
NoNewPrivileges=yes
ProtectSystem=full
# Hygon's tool keeps the limits of its shares here; ignored where the folder is missing.
ReadWritePaths=-{shares}
# Nothing of the agent lies in a home: berth-agent install looks whether that is true.
ProtectHome=yes
ProtectHostname=yes
LockPersonality=yes
RestrictSUIDSGID=yes
SystemCallArchitectures=native

[Install]
WantedBy=multi-user.target
"""

SLICE_TEXT: Final = """\
# As berth-agent install or its package wrote it; put changes into berth.slice.d/*.conf.
[Unit]
Description=Leases of Berth on this host

[Slice]
CPUAccounting=yes
MemoryAccounting=yes
TasksAccounting=yes
"""

LOGIN_TEXT: Final = """\
# Written by berth-agent install --close-logins: ordinary logins may open what they could before, but no device.
# Classes of devices that appear later are added by running it again.
[Slice]
DevicePolicy=closed
{rules}
"""

ROOT_TEXT: Final = """\
# Written by berth-agent install --close-logins: root's own logins keep every device.
[Slice]
DevicePolicy=auto
"""


class InstallError(Exception):
    """Nothing (more) was changed; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class InstallHost:
    """The host that is installed on; ``root`` stands before every path."""

    shell: Shell
    root: Path = Path("/")
    read: Read = read_text
    euid: int = 0

    def at(self, path: str) -> Path:
        """Return where a path of the host lies."""
        return self.root / path.lstrip("/")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--write", action="store_true", help="write the agent's unit and the leases' slice")
    what.add_argument("--uninstall", action="store_true", help="stop the agent and remove what was written")
    parser.add_argument(
        "--close-logins",
        action="store_true",
        help="with --write: keep ordinary logins off the devices, so that a lease is the only way to one",
    )
    parser.add_argument(
        "--program",
        default="",
        help="path of berth-agent on this host, with options of run if it needs any (the one now running)",
    )


def run(options: argparse.Namespace) -> int:
    """Carry the command out; returns the exit code."""
    host = InstallHost(HostShell(), euid=os.geteuid())
    try:
        program = options.program or program_words()
        if options.uninstall:
            uninstall(host, say)
        elif options.write:
            write(host, files(program, login_rules(host.read), close_logins=options.close_logins), say)
        else:
            show(host, files(program, login_rules(host.read), close_logins=True), say)
    except BrokenPipeError:  # nobody reads on: that is no fault of the host
        raise
    except (InstallError, ProgramError, OSError) as no:
        print(f"berth-agent: {no}", file=sys.stderr)  # noqa: T201 - the answer to whoever asked
        return FAILED
    return OK


def say(text: str) -> None:
    """Print for whoever asked."""
    print(text)  # noqa: T201


def program_words(started: str = sys.argv[0], python: str = sys.executable) -> str:
    """Return the script that started this command, or the one beside its Python, absolute as systemd wants it.

    Never ``python -m nodeagent``: -m looks for modules in the caller's folder first, and whoever calls it through
    sudo chooses that folder. Raises InstallError where there is no script.
    """
    for found in (shutil.which(started), str(Path(python).parent / SCRIPT)):
        if found and Path(found).name == SCRIPT and Path(found).is_file():
            return str(Path(found).absolute())
    raise InstallError(
        f"no {SCRIPT} lies beside {python}; install the package with its scripts, or name it with --program"
    )


def unit_words(program: str) -> tuple[str, ...]:
    """Return path, ``run`` and its options; raises InstallError for what systemd or sudo would read otherwise."""
    try:
        words = shlex.split(program)
    except ValueError as no:
        raise InstallError(f"--program {program!r}: {no}") from no
    path, options = (words[0], words[1:]) if words else ("", [])
    if not PLAIN_PATH.fullmatch(path):
        raise InstallError(
            f"--program {program!r}: give an absolute path of letters, digits and ._+-, such as"
            f" /opt/berth/bin/{SCRIPT}"
        )
    options = options[1:] if options[:1] == ["run"] else options
    if Path(path).name != SCRIPT or (options and not options[0].startswith("-")):
        raise InstallError(
            f"--program {program!r}: name {SCRIPT} itself, with options of run at most; a Python with -m, say, would"
            " take its modules from the folder of whoever calls it through sudo"
        )
    return (path, "run", *options)


def unsafe(path: Path, euid: int) -> str:
    """Return why everybody's sudo must not run this program, "" when only root or this user can change it."""
    here = Path(os.path.abspath(path))  # the name as sudo looks it up, links included
    for one in dict.fromkeys((here, here.resolve(), *here.parents, *here.resolve().parents)):
        try:
            facts = one.stat()
        except OSError as no:
            return f"{one} cannot be looked at ({no.strerror})"
        if one == here and not (S_ISREG(facts.st_mode) and os.access(one, os.X_OK)):
            return f"{one} is no program"
        if facts.st_uid not in (0, euid):
            return f"{one} belongs to uid {facts.st_uid}, who could change what others then run as root"
        # In a folder with the sticky bit only owners may replace what is theirs.
        is_shared = one != here and bool(facts.st_mode & S_ISVTX)
        if facts.st_mode & OTHERS_WRITE and not is_shared:
            return f"{one} can be written by others than its owner (mode {facts.st_mode & 0o777:o})"
    return ""


def files(program: str, rules: list[str], *, close_logins: bool) -> dict[str, str]:
    """Return the text of each file by its path; raises InstallError for a program that systemd would not take."""
    words = " ".join(unit_word(one) for one in unit_words(program))
    texts = {
        AGENT_FILE: AGENT_TEXT.format(program=words, settings=SETTINGS_FILE, shares=SHARES_FOLDER),
        SLICE_FILE: SLICE_TEXT,
    }
    if close_logins:
        texts[LOGIN_FILE] = LOGIN_TEXT.format(rules="\n".join(f"DeviceAllow={rule} rwm" for rule in rules))
        texts[ROOT_FILE] = ROOT_TEXT
    return texts


def login_rules(read: Read) -> list[str]:
    """Return what an ordinary login may open: every class of devices of this host but those of accelerators.

    systemd has no rule that forbids, so all others are named; classes as /proc/devices lists them, which is
    how DeviceAllow finds their numbers (systemd.resource-control(5)). Raises OSError.
    """
    classes = _classes(read)
    forbidden = ACCELERATORS + (("drm",) if any(name in RENDERING for _, name in classes) else ())
    kept = [f"{kind}-{name}" for kind, name in classes if not name.startswith(forbidden)]
    return list(dict.fromkeys((*ALWAYS, *kept)))


def _classes(read: Read) -> list[tuple[str, str]]:
    """Return kind (char or block) and name of each class of devices; raises OSError."""
    found, kind = [], ""
    for line in read("/proc/devices").splitlines():
        number, _, name = line.strip().partition(" ")
        if line.endswith(" devices:"):
            kind = "char" if number == "Character" else "block"
        elif number.isdigit() and not name.startswith("/"):
            found.append((kind, name.strip()))
    return found


def unit_word(word: str) -> str:
    """Return one word of ExecStart as systemd reads it back (systemd.service(5): %, $, quotes and backslashes)."""
    plain = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[^\s\"'\\;]+", plain):
        return plain
    escaped = plain.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def sudoers(program: str) -> str:
    """Return the lines that let every holder enter a lease: which one is theirs is checked inside.

    Made of the path alone, whatever options the unit has. env_reset and NOSETENV keep PYTHONPATH and its like from
    a program that is root's (sudoers(5)).
    """
    path = unit_words(program)[0]
    return (
        f'Defaults!{path} env_reset, !setenv, secure_path="{SAFE_PATH}"\n'
        f"ALL ALL=(root) NOPASSWD: NOSETENV: {path} enter *"
    )


def sudoers_for(host: InstallHost, texts: Mapping[str, str]) -> str:
    """Return the lines for sudo, or in their place why there are none for this program."""
    path = _program(texts)
    why = unsafe(host.at(path), host.euid)
    if not why:
        return sudoers(path)
    return (
        f"# None for {path}: {why}. Install {SCRIPT} as root where only root can write, such as /opt/berth, and"
        " run this again."
    )


def _program(texts: Mapping[str, str]) -> str:
    line = next(one for one in texts[AGENT_FILE].splitlines() if one.startswith("ExecStart="))
    return line.partition("=")[2].partition(" ")[0]


def show(host: InstallHost, texts: Mapping[str, str], out: Callable[[str], None]) -> None:
    """Print every file, what would change, and what to do; changes nothing."""
    for path, text in texts.items():
        note = " (only with --close-logins)" if path in (LOGIN_FILE, ROOT_FILE) else ""
        out(f"# {path}{note}: {_state(host, path, text)}\n{text}")
    out(f"# {SUDOERS_FILE}, to be put there with visudo -f\n{sudoers_for(host, texts)}\n")
    if why := unseen(_program(texts), host.root):
        out(f"These files would not be written: {why}.")
    out("Nothing was changed. Write these files with: berth-agent install --write [--close-logins]")


def write(host: InstallHost, texts: Mapping[str, str], out: Callable[[str], None]) -> None:
    """Write what differs, each file whole, and let systemd read it; shows each change.

    Raises InstallError, before anything is changed, for a program that the unit could not see.
    """
    _require_root(host)
    if why := unseen(_program(texts), host.root):
        raise InstallError(f"{why}. Nothing was changed.")
    changed = [path for path, text in texts.items() if _text(host, path) != text]
    for path in changed:
        out(diff(path, _text(host, path), texts[path]))
        host.at(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        put(host.at(path), texts[path], mode=MODE)
    folder = host.at(SHARES_FOLDER)
    if any(name in HYGON for _, name in _classes(host.read)) and not folder.is_dir():
        folder.mkdir(mode=0o755, parents=True)
        out(f"made {SHARES_FOLDER}, where hy-smi keeps the limits of vDCUs")
    if changed:
        _reload(host)
    else:
        out("Everything is in place already.")
    out(
        f"Settings of the agent: {SETTINGS_FILE}, with BERTH_PORTAL_URL=wss://..., BERTH_NODE=... and"
        f" BERTH_ENROL_TOKEN_FILE=... (outside of homes too). Start it: systemctl enable --now"
        f" {AGENT_UNIT}\nLet holders in, with visudo -f {SUDOERS_FILE}:\n{sudoers_for(host, texts)}"
    )
    if LOGIN_FILE in changed:
        out("Logins that are open now keep what they have opened; from now on no login opens a device.")


def uninstall(host: InstallHost, out: Callable[[str], None]) -> None:
    """Stop the agent and remove what was written. Leases that are open run to their end by systemd's timers."""
    _require_root(host)
    found = [path for path in (AGENT_FILE, SLICE_FILE, LOGIN_FILE, ROOT_FILE) if host.at(path).exists()]
    if AGENT_FILE in found:
        done = host.shell.run(["systemctl", "disable", "--now", AGENT_UNIT])
        if not done.is_ok:
            raise InstallError(f"the agent was not stopped, so nothing was removed: {done.said}")
    for path in found:
        host.at(path).unlink()
        out(f"removed {path}")
    if found:
        _reload(host)
    out(f"Left in place: /var/lib/berth-agent (key and journal), {SETTINGS_FILE}, {SUDOERS_FILE}")


def diff(path: str, old: str, new: str) -> str:
    """Return what changes in a file, as ``diff -u`` shows it."""
    before, after = old.splitlines(), new.splitlines()
    return "\n".join(difflib.unified_diff(before, after, path if old else "/dev/null", path, lineterm=""))


def _require_root(host: InstallHost) -> None:
    if host.euid != 0:
        raise InstallError(f"writing to {UNITS} takes root: run this with sudo. Nothing was changed.")


def _reload(host: InstallHost) -> None:
    done = host.shell.run(["systemctl", "daemon-reload"])
    if not done.is_ok:
        raise InstallError(f"the files are in place, but systemd did not read them: {done.said}")


def _state(host: InstallHost, path: str, text: str) -> str:
    now = _text(host, path)
    return "not there yet" if not now else "as it should be" if now == text else "would be changed"


def _text(host: InstallHost, path: str) -> str:
    """Return what systemd reads: the file of this path, or the unit of the same name that a package brought."""
    for one in (path, path.replace(UNITS, PACKAGED, 1)):
        try:
            return host.at(one).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
    return ""
