"""What a job may say of itself: one schema for file, form, API and command line, with errors for people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from django.utils.translation import gettext as _

from nodeagent.protocol.images import MOST_REFERENCE, image_of
from nodeagent.protocol.variables import NAMES
from portal.common.errors import Invalid
from portal.jobs.states import RetryCause
from portal.leases.requests import PRIORITIES
from portal.teams.labels import check_tags

MOST_COMMAND: Final = 32 * 1024
MOST_ENV: Final = 32 * 1024
MOST_NAMES: Final = 100
MOST_ARRAY: Final = 1000
MOST_INDEX: Final = 1_000_000
MOST_RETRIES: Final = 10
MOST_PATTERNS: Final = 50
USUAL_TIME_S: Final = 3600
NOTIFY: Final = ("start", "end", "fail")
# As people have it at the top of their scripts: what fails, and what is not set, ends it.
STRICT: Final = "set -euo pipefail\n"
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_TIME: Final = re.compile(
    r"(?:(?P<days>\d{1,3})-)?(?P<first>\d{1,5})(?::(?P<second>\d{1,2}))?(?::(?P<third>\d{1,2}))?"
)
_SPAN: Final = re.compile(r"(\d{1,6})\s*([smhd])")
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,5}))?)?")
_EXIT: Final = re.compile(r"exit:([1-9]\d{0,2})")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_FIELDS: Final = (
    "name", "image", "command", "env", "secrets", "workdir", "resources", "time", "array", "retries",
    "after_ok", "artifacts", "notify", "priority", "preemptible", "project", "tags",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A checked job. ``gpu`` is what of the fleet is asked for: a flavor, a size ("20GB") or a model ("H100")."""

    command: str | list[str]
    gpu: str
    count: int = 1
    time_s: int = USUAL_TIME_S
    name: str = ""
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    workdir: str = ""
    array: list[int] = field(default_factory=list)
    at_once: int = 0
    retries: int = 3
    retry_on: list[str] = field(
        default_factory=lambda: [RetryCause.PREEMPTED.value, RetryCause.NODE_LOST.value]
    )
    after_ok: list[str] = field(default_factory=list)
    artifacts: list[str] = field(default_factory=list)
    notify: list[str] = field(default_factory=list)
    priority: str = "normal"
    is_preemptible: bool = False
    image: str = ""
    project: str = ""
    tags: dict[str, str] = field(default_factory=dict)

    def kept(self) -> dict[str, Any]:
        """Return what is stored of it with each job; of an array each knows its own index."""
        return asdict(replace(self, array=[]))


class _Reader:
    """Reads a raw job field by field and remembers what cannot be used."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self.raw = raw
        self.errors: dict[str, Any] = {}

    def text(self, name: str, most: int) -> str:
        value = self.raw.get(name, "")
        value = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
        if not isinstance(value, str) or len(value) > most or "\0" in value:
            self.errors[name] = _("Write a text of at most %(n)d characters.") % {"n": most}
            return ""
        return value.strip()

    def texts(self, name: str, most: int) -> list[str]:
        value = self.raw.get(name, [])
        value = [value] if isinstance(value, str) else value
        fits = isinstance(value, list) and len(value) <= most
        if not fits or not all(
            isinstance(one, str) and one and "\0" not in one and len(one) <= 300 for one in value
        ):
            self.errors[name] = _("Give a list of at most %(n)d texts.") % {"n": most}
            return []
        return list(dict.fromkeys(value))


def read_spec(raw: object) -> JobSpec:
    """Return the job that somebody wrote down, or raise Invalid naming every field that cannot be used."""
    if not isinstance(raw, Mapping):
        raise Invalid(fields={"command": _("A job is a list of fields, of which “command” is needed.")})
    read = _Reader(raw)
    _refuse_unknown(read)
    gpu, count = _resources(read)
    indices, at_once = _array(read)
    retries, retry_on = _retries(read)
    notify = read.texts("notify", len(NOTIFY))
    if not set(notify) <= set(NOTIFY):
        read.errors["notify"] = _("Choose some of: %(words)s.") % {"words": ", ".join(NOTIFY)}
    priority = raw.get("priority", "normal")
    if priority not in PRIORITIES:
        read.errors["priority"] = _("Choose low, normal or high.")
    is_preemptible = raw.get("preemptible", False)
    if not isinstance(is_preemptible, bool):
        read.errors["preemptible"] = _("Say true or false.")
    spec = JobSpec(
        command=_command(read),
        gpu=gpu,
        count=count,
        time_s=_time(read),
        name=read.text("name", 80),
        env=_env(read),
        secrets=_secrets(read),
        workdir=read.text("workdir", 1000),
        array=indices,
        at_once=at_once,
        retries=retries,
        retry_on=retry_on,
        after_ok=read.texts("after_ok", MOST_NAMES),
        artifacts=_artifacts(read),
        notify=notify,
        priority=str(priority),
        is_preemptible=bool(is_preemptible),
        image=_image(read),
        project=read.text("project", 40),
        tags=_tags(read),
    )
    if read.errors:
        raise Invalid(fields=read.errors)
    return spec


def _tags(read: _Reader) -> dict[str, str]:
    tags = read.raw.get("tags", {})
    if not isinstance(tags, Mapping):
        read.errors["tags"] = _("Write tags as names with values, such as grant: EU-4711.")
        return {}
    try:
        return check_tags(tags)
    except Invalid as error:
        read.errors["tags"] = error.fields["tags"]
        return {}


def may_follow(kept: Mapping[str, Any]) -> bool:
    """Say whether a job as it is kept may follow another in a lease: not in a container, and nothing is collected."""
    return not kept.get("image") and not kept.get("artifacts")


def words_of(command: str | list[str]) -> list[str]:
    """Return what is run for a command: its words, or a login shell for a text."""
    return ["bash", "-lc", STRICT + command] if isinstance(command, str) else list(command)


def _refuse_unknown(read: _Reader) -> None:
    for name in read.raw:
        if name in _FIELDS:
            continue
        near = difflib.get_close_matches(str(name), _FIELDS, 1)
        read.errors[str(name)[:60]] = (
            _("There is no such field. Did you mean “%(name)s”?") % {"name": near[0]}
            if near
            else _("There is no such field.")
        )


def _command(read: _Reader) -> str | list[str]:
    command = read.raw.get("command")
    if isinstance(command, str) and command.strip():
        fits = len(command.encode(errors="replace")) <= MOST_COMMAND and "\0" not in command
        is_good = fits
    elif (
        isinstance(command, list) and command and all(isinstance(one, str) for one in command) and command[0]
    ):
        is_good = sum(len(one.encode(errors="replace")) for one in command) <= MOST_COMMAND
        is_good = is_good and not any("\0" in one for one in command)
    else:
        read.errors["command"] = _(
            'Say what to run: a list like ["python", "train.py"], or a text that bash runs.'
        )
        return ""
    if not is_good:
        read.errors["command"] = _("A command has at most %(n)d bytes. Put longer ones into a file.") % {
            "n": MOST_COMMAND
        }
    return command


def _env(read: _Reader) -> dict[str, str]:
    raw = read.raw.get("env") or {}
    if not isinstance(raw, Mapping) or len(raw) > MOST_NAMES:
        read.errors["env"] = _("Give at most %(n)d variables, each with its value.") % {"n": MOST_NAMES}
        return {}
    env: dict[str, str] = {}
    for name, value in raw.items():
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            read.errors["env"] = _("“%(name)s” cannot be the name of a variable.") % {"name": str(name)[:60]}
        elif name in NAMES or name.startswith("BERTH_"):
            read.errors["env"] = _("%(name)s is set by the lease itself.") % {"name": name}
        elif isinstance(value, bool) or not isinstance(value, (str, int, float)) or "\0" in str(value):
            read.errors["env"] = _("The value of %(name)s must be a text.") % {"name": name}
        else:
            env[name] = str(value)
    if sum(len(name) + len(value.encode(errors="replace")) for name, value in env.items()) > MOST_ENV:
        read.errors["env"] = _("All variables together have at most %(n)d bytes.") % {"n": MOST_ENV}
    return env


def _image(read: _Reader) -> str:
    text = read.text("image", MOST_REFERENCE)
    if text and image_of(text) is None:
        read.errors["image"] = _(
            "Name an image with its registry, like registry.example/team/pytorch:2.9, or one of the site's own, like"
            " oci:pytorch:2.9."
        )
    env = read.raw.get("env")
    if text and isinstance(env, Mapping) and any("\n" in str(value) for value in env.values()):
        read.errors["env"] = _("In a container a variable has one line. Encode it, or write it to a file.")
    return text


def _secrets(read: _Reader) -> list[str]:
    names = read.texts("secrets", 20)
    for name in names:
        if not is_variable(name) or name in NAMES or name.startswith("BERTH_"):
            read.errors["secrets"] = _("“%(name)s” cannot be the name of a variable.") % {"name": name[:60]}
    return names


def is_variable(name: str) -> bool:
    """Say whether this may be the name of a variable."""
    return _VARIABLE.fullmatch(name) is not None


def _resources(read: _Reader) -> tuple[str, int]:
    raw = read.raw.get("resources")
    if isinstance(raw, str):
        raw = {"gpu": raw}
    if not isinstance(raw, Mapping):
        read.errors["resources"] = _("Say what the job needs, for example resources: {gpu: 20GB, count: 1}.")
        return "", 1
    for name in set(raw) - {"gpu", "flavor", "count"}:
        if name in ("cpu", "memory", "shm"):
            read.errors["resources"] = _("“%(name)s” comes with the flavor. Leave it out.") % {"name": name}
        else:
            read.errors["resources"] = _("A job asks for “gpu” and “count” only.")
    gpu, count = raw.get("gpu") or raw.get("flavor"), raw.get("count", 1)
    if not isinstance(gpu, str) or not gpu.strip() or len(gpu) > 80:
        read.errors["resources"] = _("Name a flavor, a size like 20GB or a model like H100 under “gpu”.")
        gpu = ""
    model, colon, times = str(gpu).partition(":")
    if colon and times.isdecimal() and len(times) < 4:
        gpu, count = model, int(times)
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1000:
        read.errors["resources"] = _("“count” is a whole number from 1 on.")
        count = 1
    return str(gpu).strip(), count


def _time(read: _Reader) -> int:
    raw = read.raw.get("time", USUAL_TIME_S)
    found = raw if isinstance(raw, int) and not isinstance(raw, bool) else None
    if isinstance(raw, str):
        found = seconds_of(raw)
    if found is None or not 1 <= found <= 366 * 86_400:
        read.errors["time"] = _("Write the time like 6:00:00, 1-12:00:00, 90m or 2h.")
        return USUAL_TIME_S
    return found


def seconds_of(text: str) -> int | None:
    """Return the seconds of a time as Slurm writes it (minutes, M:S, H:M:S, D-H, D-H:M, D-H:M:S) or like 90m."""
    text = text.strip()
    span = _SPAN.fullmatch(text)
    if span:
        return int(span[1]) * _UNITS[span[2]]
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    parts = [int(part) for part in (found["first"], found["second"], found["third"]) if part is not None]
    if found["days"] is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
        return int(found["days"]) * 86_400 + hours * 3600 + minutes * 60 + seconds
    if len(parts) == 3:
        return parts[0] * 3600 + parts[1] * 60 + parts[2]
    return parts[0] * 60 + (parts[1] if len(parts) == 2 else 0)


def _array(read: _Reader) -> tuple[list[int], int]:
    raw = read.raw.get("array", "")
    raw = str(raw) if isinstance(raw, int) and not isinstance(raw, bool) else raw
    if not raw:
        return [], 0
    indices: set[int] = set()
    text, percent, limit = raw.partition("%") if isinstance(raw, str) else ("", "", "")
    at_once = int(limit) if limit.isdecimal() and len(limit) < 6 else 0
    is_good = bool(text) and bool(percent) == bool(at_once)
    for part in text.split(",") if is_good else ():
        found = _RANGE.fullmatch(part.strip())
        low = int(found[1]) if found else 0
        high = int(found[2] or found[1]) if found else -1
        step = max(1, int(found[3] or 1)) if found else 1
        if high < low or high > MOST_INDEX or (high - low) // step >= MOST_ARRAY:
            is_good = False
            break
        indices |= set(range(low, high + 1, step))
    if not is_good or not 1 <= len(indices) <= MOST_ARRAY:
        read.errors["array"] = _("Write an array like 1-20, 1-20%%4 or 1,3,7, of at most %(n)d.") % {
            "n": MOST_ARRAY
        }
        return [], 0
    return sorted(indices), at_once


def _retries(read: _Reader) -> tuple[int, list[str]]:
    usual = JobSpec("", "")
    raw = read.raw.get("retries")
    if raw is None:
        return usual.retries, usual.retry_on
    if isinstance(raw, int) and not isinstance(raw, bool):
        raw = {"max": raw}
    if not isinstance(raw, Mapping) or not set(raw) <= {"max", "on", "true", True}:
        read.errors["retries"] = _("Write retries like {max: 3, on: [preempted, node_lost, exit:75]}.")
        return 0, []
    most = raw.get("max", usual.retries)
    # YAML reads “on” as yes, and JSON then writes that as a text.
    causes = next((raw[key] for key in ("on", True, "true") if key in raw), usual.retry_on)
    if isinstance(most, bool) or not isinstance(most, int) or not 0 <= most <= MOST_RETRIES:
        read.errors["retries"] = _("A job is tried again at most %(n)d times.") % {"n": MOST_RETRIES}
        most = 0
    good = isinstance(causes, list) and all(
        isinstance(one, str) and (one in RetryCause.values or _is_exit(one)) for one in causes
    )
    if not good:
        read.errors["retries"] = _(
            "A job is tried again when it was preempted, node_lost, or for an exit:CODE."
        )
        causes = []
    return most, list(dict.fromkeys(causes))


def _is_exit(text: str) -> bool:
    found = _EXIT.fullmatch(text)
    return found is not None and int(found[1]) <= 255


def _artifacts(read: _Reader) -> list[str]:
    """Return patterns of files below the working directory, as .gitignore has them: **, * and ?."""
    patterns = read.texts("artifacts", MOST_PATTERNS)
    for pattern in patterns:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if pattern.startswith(("/", "~")) or ".." in parts or not parts or not pattern.isprintable():
            read.errors["artifacts"] = _(
                "“%(pattern)s” does not name files below the working directory. Write it like out/** or *.ckpt."
            ) % {"pattern": pattern[:60]}
    return patterns
