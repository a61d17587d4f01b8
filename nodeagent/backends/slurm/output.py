"""What Slurm prints, as values. Nothing of it is believed further than its form."""

from __future__ import annotations

import re
from typing import Final

_RANGE: Final = re.compile(r"([A-Za-z0-9._-]*)\[([0-9,-]+)\]")
_GRES: Final = re.compile(r"([A-Za-z0-9_]+(?::[A-Za-z0-9._-]+?)?):([0-9]+)(?:\(IDX:([^)]*)\))?(?=,|\(|$)")
_ON_NODE: Final = re.compile(r"\bNodes=(\S+) CPU_IDs=\S* Mem=\S* GRES=(\S*)")
_DOWN: Final = ("down", "drain", "fail", "maint", "unknown", "invalid", "not_responding", "reboot", "power")
MOST_NODES: Final = 4096


def count_of(gres: str, wanted: str) -> int:
    """Return how many of a GRES a list such as ``gpu:a100:8(S:0-1),gpu:l4:2`` has.

    ``wanted`` is ``gpu`` for all types of it, or ``gpu:a100``.
    """
    return sum(int(found[2]) for found in _GRES.finditer(gres) if is_of(found[1], wanted))


def is_of(name: str, wanted: str) -> bool:
    """Say whether a GRES is the wanted one; a name without a type is any type of it."""
    return name == wanted or (":" not in wanted and name.partition(":")[0] == wanted)


def nodes_of(text: str) -> tuple[str, ...]:
    """Return the hosts of a list such as ``n[1-3,7],login``."""
    found: list[str] = []
    for part in re.split(r",(?![^\[]*\])", text):
        ranged = _RANGE.fullmatch(part)
        if ranged is None:
            found.append(part)
            continue
        for piece in ranged[2].split(","):
            first, _, last = piece.partition("-")
            if not first.isdecimal() or not (last or first).isdecimal():
                continue
            top = min(int(last or first), int(first) + MOST_NODES)
            found += [f"{ranged[1]}{n:0{len(first)}d}" for n in range(int(first), top + 1)]
    return tuple(name for name in found if name)[:MOST_NODES]


def indexes_of(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as ``0-1,4``; () where the cluster names none."""
    found: list[int] = []
    for piece in text.split(","):
        first, _, last = piece.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            return ()
        found += range(int(first), min(int(last or first), int(first) + 1023) + 1)
    return tuple(found)


def given(job: str, wanted: str) -> tuple[str, ...]:
    """Return the units that a running job was given, of ``scontrol -o -d show job``: ``n1/gpu0``, ``n1/gpu1``.

    Where the cluster counts without numbers they are numbered as they come.
    """
    found: list[str] = []
    for nodes, gres in _ON_NODE.findall(job):
        for node in nodes_of(nodes):
            for entry in _GRES.finditer(gres):
                if not is_of(entry[1], wanted):
                    continue
                numbers = indexes_of(entry[3] or "")
                count = int(entry[2])
                names = numbers if len(numbers) == count else tuple(range(count))
                kind = entry[1].partition(":")[0]
                found += [f"{node}/{kind}{'' if names is numbers else '-any'}{n}" for n in names]
    return tuple(found)


def tres_count(tres: str, wanted: str) -> int | None:
    """Return how many of a GRES the resources of a job name, None where they name none of its kind at all."""
    name = f"gres/{wanted}"
    counts = dict(part.partition("=")[::2] for part in tres.split(","))
    told = counts.get(name)
    return int(told) if told is not None and told.isdecimal() else None


def fields_of(line: str) -> dict[str, str]:
    """Return the first value of each NAME=value of ``scontrol -o``."""
    found: dict[str, str] = {}
    for name, value in re.findall(r"(?:^|\s)([A-Za-z/:]+)=(\S*)", line):
        found.setdefault(name, value)
    return found


def seconds_of(text: str) -> int | None:
    """Return seconds of ``[days-]hours:minutes:seconds``, None for anything else."""
    found = re.fullmatch(r"(?:([0-9]+)-)?([0-9]+):([0-9]{2}):([0-9]{2})", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def instant_of(text: str) -> int | None:
    """Return seconds since 1970, None for what has not happened."""
    return int(text) if text.isdecimal() and int(text) else None


def takes_no_work(state: str) -> bool:
    """Say whether a host in this state takes no new work."""
    words = state.lower().rstrip("*~#!%$@^-+")
    return state.endswith("*") or any(word in words for word in _DOWN)
