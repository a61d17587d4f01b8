"""A Slurm script as a job: the usual ``#SBATCH`` lines, and a list of those that mean nothing here."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Any, Final

_SHORT: Final = {
    "J": "job-name", "t": "time", "a": "array", "D": "chdir", "d": "dependency", "G": "gpus", "o": "output",
    "e": "error", "p": "partition", "n": "ntasks", "N": "nodes", "c": "cpus-per-task", "A": "account", "q": "qos",
}  # fmt: skip
_AFTER_OK: Final = re.compile(r"afterok:([A-Za-z0-9:-]+)")
_NOTIFY: Final = {"BEGIN": "start", "END": "end", "FAIL": "fail", "ALL": "all"}


class NoScriptError(Exception):
    """A text that is no script for sbatch; the sentence says why."""


@dataclass(slots=True)
class SlurmScript:
    """What a script asks for, as a job, and the lines that mean nothing here."""

    job: dict[str, Any]
    ignored: list[str] = field(default_factory=list)


def read_script(text: str, *, gpu: str = "") -> SlurmScript:
    """Return a script as a job; raises NoScriptError."""
    if not text.startswith("#!"):
        raise NoScriptError("a script for sbatch begins with #!, as in #!/bin/bash")
    script = SlurmScript({"command": ["/bin/sh", "-c", _runner(text), "sbatch", text], "retries": {"max": 0}})
    asked: dict[str, Any] = {}
    for line in text.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break  # as Slurm has it: what comes behind the first command is no directive
        if line.startswith("#SBATCH"):
            for name, value in _options(line):
                if not _take(script.job, asked, name, value):
                    script.ignored.append(f"--{name}{'=' + value if value else ''}")
    wanted = gpu or asked.get("gpu", "")
    if not wanted:
        raise NoScriptError("the script asks for no GPU: add --gres=gpu:NAME:1, or say --gpu")
    script.job["resources"] = {"gpu": wanted, "count": 1 if gpu else asked.get("count", 1)}
    return script


def _runner(text: str) -> str:
    """Return a shell line that runs the script by its own interpreter, without a file that others could read."""
    words = shlex.split(text.splitlines()[0][2:].strip()) or ["/bin/sh"]
    return (
        f'exec {shlex.join(words)} -c "$1"' if _is_shell(words) else f'printf %s "$1" | {shlex.join(words)} -'
    )


def _is_shell(words: list[str]) -> bool:
    return any(word.rsplit("/", 1)[-1] in ("sh", "bash", "zsh", "ksh", "dash") for word in words)


def _options(line: str) -> list[tuple[str, str]]:
    try:
        words = shlex.split(line, comments=False)[1:]
    except ValueError as no:
        raise NoScriptError(f"a quote is open in: {line}") from no
    found: list[tuple[str, str]] = []
    while words:
        word = words.pop(0)
        if word.startswith("#"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            if not equals and words and not words[0].startswith("-"):
                value = words.pop(0)
        else:
            name = _SHORT.get(word[1:2], word.lstrip("-"))
            value = word[2:] or (words.pop(0) if words and not words[0].startswith("-") else "")
        found.append((name, value))
    return found


def _take(job: dict[str, Any], asked: dict[str, Any], name: str, value: str) -> bool:
    """Put one option into the job; False for one that means nothing here."""
    plain = {"job-name": "name", "time": "time", "array": "array", "chdir": "workdir"}
    if name in plain:
        job[plain[name]] = value
    elif name in ("gres", "gpus", "gpus-per-node") and value:
        parts = value.removeprefix("gpu:").split(":") if name == "gres" else value.split(":")
        if name == "gres" and not value.startswith("gpu"):
            return False
        count = parts.pop() if parts[-1].isdecimal() else "1"
        asked["count"] = int(count)
        if parts and parts[0] != "gpu":
            asked["gpu"] = parts[0]
    elif name == "dependency" and _AFTER_OK.fullmatch(value):
        job["after_ok"] = _AFTER_OK.fullmatch(value)[1].split(":")  # type: ignore[index]
    elif name == "requeue":
        job["retries"] = {"max": 3}
    elif name == "no-requeue":
        job["retries"] = {"max": 0}
    elif name == "mail-type":
        kinds = [_NOTIFY[one] for one in value.split(",") if one in _NOTIFY]
        job["notify"] = ["start", "end", "fail"] if "all" in kinds else kinds
        return bool(kinds)
    elif name == "export" and value.split(",")[0] in ("ALL", "NONE"):
        pairs = [one.partition("=") for one in value.split(",")[1:]]
        job["env"] = {key: got for key, equals, got in pairs if equals}
    else:
        return False
    return True
