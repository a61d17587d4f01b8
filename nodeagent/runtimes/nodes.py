"""Device nodes of NVIDIA's driver that are missing: which words of nvidia-modprobe make each of them.

Options as in the program's own table (github.com/NVIDIA/nvidia-modprobe): -c makes the node of a minor number, -u
those of unified memory, -f that of a capability, by the capability's file below /proc. No other option makes a
capability node, and the nodes of MIG instances are capabilities.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from nodeagent.host.files import Read
from nodeagent.host.shell import ProgramError, Shell

PROGRAM: Final = "nvidia-modprobe"
MINORS: Final = "/proc/driver/nvidia-caps/mig-minors"
CAPABILITIES: Final = "/proc/driver/nvidia/capabilities"
CARD: Final = re.compile(r"/dev/nvidia(\d+)")
CAPABILITY: Final = re.compile(r"/dev/nvidia-caps/nvidia-cap(\d+)")
INSTANCE: Final = re.compile(r"(gpu\d+)/(gi\d+(?:/ci\d+)?/access)")
CONTROL_MINOR: Final = "255"


def words_for(node: str, read: Read) -> list[str]:
    """Return the words that make a node, none where no words are known."""
    if device := CARD.fullmatch(node):
        return [PROGRAM, "-c", device[1]]
    if node == "/dev/nvidiactl":
        return [PROGRAM, "-c", CONTROL_MINOR]
    if node in ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"):
        return [PROGRAM, "-u", "-c", "0"]
    capability = CAPABILITY.fullmatch(node)
    file = capability_file(capability[1], read) if capability else ""
    return [PROGRAM, "-f", file] if file else []


def capability_file(minor: str, read: Read) -> str:
    """Return the file of a MIG instance's capability, "" for any other: those nobody is given."""
    try:
        lines = read(MINORS).splitlines()
    except OSError:
        return ""
    names = [words[0] for line in lines if len(words := line.split()) == 2 and words[1] == minor]
    found = INSTANCE.fullmatch(names[0]) if names else None
    return f"{CAPABILITIES}/{found[1]}/mig/{found[2]}" if found else ""


def make(nodes: Iterable[str], read: Read, shell: Shell) -> None:
    """Make nodes that are missing, as far as words are known; whether they are there is asked afterwards."""
    for words in unique(words_for(node, read) for node in nodes):
        try:
            shell.run(words)
        except ProgramError:
            return  # not installed: the refusal says so in words that people can carry out


def advice(nodes: Iterable[str], read: Read) -> str:
    """Return what an operator can do about nodes that are missing."""
    known = unique(words_for(node, read) for node in nodes)
    if not known:
        return "check that the driver is loaded, and knows this device"
    return f"make it with {'; '.join(' '.join(words) for words in known)}, or check that the driver is loaded"


def unique(many: Iterable[list[str]]) -> list[list[str]]:
    """Return those that are not empty, each once."""
    return [list(words) for words in dict.fromkeys(tuple(words) for words in many if words)]
