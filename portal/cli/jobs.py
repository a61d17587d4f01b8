"""Commands about batch jobs: hand in, follow, look, cancel, run again; and the secrets that jobs get."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from portal.cli import formatting, output
from portal.cli.command import STILL_WAITING, Json, Team, api, guarded
from portal.cli.job_news import JobNews
from portal.cli.labels import Tags, tags_of
from portal.cli.sbatch import NoScriptError, read_script

OPEN = ("waiting", "starting", "running")
UNKNOWN_END = 1
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Escape sequences whole, then every other control character but line ends and tabs.
STEERS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|"
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
)
JobId = Annotated[str, typer.Argument(metavar="ID", help="As “berth jobs” shows it (job-…).")]
job = typer.Typer(help="One batch job.", no_args_is_help=True)
secret = typer.Typer(help="Values that your jobs get as variables.", no_args_is_help=True)


@guarded
def submit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A job in YAML or JSON; “-” is stdin.")],
    team: Team = "",
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its log and wait for its end.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Hand in a batch job. With --follow the exit code is the job's."""
    import yaml

    try:
        body = yaml.safe_load(_text_of(file))
    except yaml.YAMLError as no:
        raise typer.BadParameter(f"{file} is no YAML: {' '.join(str(no).split())[:200]}") from no
    _hand_in(body, team, follow=follow, as_json=as_json)


@guarded
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="After “--”: what to run.")],
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="A flavor, a size (20GB) or a model (H100:2).")],
    time_: Annotated[str, typer.Option("--time", "-t", help="As 6:00:00, 1-12:00:00, 90m or 2h.")] = "1h",
    env: Annotated[list[str], typer.Option("--env", "-e", help="NAME=value; repeat for several.")] = [],  # noqa: B006
    workdir: Annotated[str, typer.Option(help="Where it runs; the home folder.")] = "",
    name: Annotated[str, typer.Option(help="A name to find it again.")] = "",
    image: Annotated[str, typer.Option("--image", "-i", help="Run it in a container of this image.")] = "",
    project: Annotated[str, typer.Option(help="Code of a project; see “berth project list”.")] = "",
    tags: Tags = [],  # noqa: B006 (typer reads it, nobody changes it)
    team: Team = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Hand it in and return at once.")] = False,
    as_json: Json = False,
) -> None:
    """Run a command as a batch job and follow it: the log comes here, and the exit code is the job's."""
    pairs = [one.partition("=") for one in env]
    if any(not equals for _name, equals, _value in pairs):
        raise typer.BadParameter("write variables as NAME=value", param_hint="--env")
    body = {
        "command": command,
        "resources": {"gpu": gpu},
        "time": time_,
        "env": {key: value for key, _equals, value in pairs},
        "workdir": workdir,
        "name": name or shlex.join(command)[:80],
        **({"image": image} if image else {}),
        **({"project": project} if project else {}),
        **({"tags": tags_of(tags)} if tags else {}),
    }
    _hand_in(body, team, follow=not detach, as_json=as_json)


@guarded
def sbatch(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A script with #SBATCH lines; “-” is stdin.")],
    gpu: Annotated[str, typer.Option("--gpu", "-g", help="In place of what the script asks for.")] = "",
    team: Team = "",
    as_json: Json = False,
) -> None:
    """Hand in a Slurm script. What of it means nothing here is listed."""
    try:
        script = read_script(_text_of(file), gpu=gpu)
    except NoScriptError as no:
        raise typer.BadParameter(str(no)) from no
    for line in script.ignored:
        output.say(f"ignored: {line}")
    _hand_in(script.job, team, follow=False, as_json=as_json)


@guarded
def jobs(
    everything: Annotated[bool, typer.Option("--all", help="Also what has ended.")] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Only your own.")] = False,
    array: Annotated[str, typer.Option(help="Only those of an array (arr-…).")] = "",
    team: Team = "",
    most: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most this many.")] = 50,
    as_json: Json = False,
) -> None:
    """List the batch jobs of your teams, newest first."""
    with api() as portal:
        who = portal.get("me/")["username"] if mine else ""
        states = {} if everything or array else {"state": list(OPEN)}
        found = list(portal.every("jobs/", most=most, team=team, user=who, array=array, **states))
    cells = [
        (
            one["id"], one["state"], one["name"], one["flavor"], one["team"], one["user"],
            "" if one["index"] is None else one["index"], _ran(one), one["outcome"],
        )
        for one in found
    ]  # fmt: skip
    columns = ("ID", "STATE", "NAME", "FLAVOR", "TEAM", "WHO", "INDEX", "RAN", "HOW IT ENDED")
    output.listing(
        found, columns, cells, empty="No jobs. Hand one in with “berth submit FILE”.", as_json=as_json
    )


@guarded
def images(as_json: Json = False) -> None:
    """List the images that your jobs find on nodes: they are not fetched there again."""
    with api() as portal:
        found = portal.get("jobs/images/")["images"]
    cells = [
        (
            one["image"],
            formatting.memory(one["size_mib"]),
            ", ".join(one["nodes"]),
            (one["digest"] or "")[:19],
        )
        for one in found
    ]
    columns = ("IMAGE", "SIZE", "ON", "DIGEST")
    output.listing(found, columns, cells, empty="None of your images is on a node.", as_json=as_json)


@guarded
def logs(
    name: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    attempt: Annotated[int, typer.Option(min=0, help="Number of the attempt; 0 is the last one.")] = 0,
) -> None:
    """Print what a job printed. Control characters but colours are left out on a terminal."""
    uid = safe_name(name)
    with api() as portal, _news_of(portal, uid) as news:
        print_log(portal, uid, attempt=attempt, news=news if follow else None)


def _news_of(portal: Any, uid: str) -> JobNews:
    return JobNews(portal.config.url, portal.config.token, uid)


def print_log(portal: Any, uid: str, *, attempt: int, news: JobNews | None) -> None:
    """Print a job's output from its begin; with ``news`` go on until it has ended."""
    offset, shown = 0, attempt
    while True:
        page = portal.get(
            f"jobs/{uid}/log/", offset=str(offset), **({"attempt": str(shown)} if shown else {})
        )
        if page["text"]:
            _print_raw(page["text"])
        if page["next"] > offset:
            offset = page["next"]
            if news is not None:
                news.came()
            continue
        if page["is_done"] or news is None:
            if not (news is not None and not attempt and portal.get(f"jobs/{uid}/")["state"] in OPEN):
                return
            shown = 0 if page["attempt"] is None else page["attempt"] + 1
            offset = 0
            if not any(one["number"] == shown for one in portal.get(f"jobs/{uid}/")["tries"]):
                shown = page["attempt"] or 0
                offset = page["next"]
        assert news is not None
        news.wait()


def _print_raw(text: str) -> None:
    """Print as it is into a pipe; on a terminal, colours are the only thing that may steer it."""
    if sys.stdout.isatty():
        text = STEERS.sub(lambda found: found[0] if COLOUR.fullmatch(found[0]) else "", text)
    sys.stdout.write(text)
    sys.stdout.flush()


@job.command("show")
@guarded
def show(name: JobId, as_json: Json = False) -> None:
    """Show a job, its attempts and how each ended."""
    with api() as portal:
        found = portal.get(f"jobs/{safe_name(name)}/")
    if as_json:
        output.out_json(found)
        return
    digests = [one["image_digest"] for one in reversed(found["tries"])]
    digest = next((one for one in (*digests, found.get("image_digest")) if one), "")
    output.facts(
        (
            ("id", found["id"]),
            ("name", found["name"]),
            ("state", found["state"]),
            ("outcome", found["outcome"] or found["progress"]),
            *((("image", found["image"]),) if found["image"] else ()),
            *((("digest", digest),) if digest else ()),
            ("flavor", f"{found['count']} × {found['flavor']}"),
            ("time limit", formatting.span(found["time_s"])),
            ("ran", _ran(found)),
            ("peak memory", _memory(found)),
        )
    )
    cells = [
        (one["number"], one["state"], one["lease"], _ran(one), one["artifacts"] or "", one["outcome"])
        for one in found["tries"]
    ]
    columns = ("ATTEMPT", "STATE", "LEASE", "RAN", "FILES", "HOW IT ENDED")
    output.table(columns, cells, empty="It has not begun.")


@job.command("cancel")
@guarded
def cancel(name: JobId) -> None:
    """Cancel a job: its request is withdrawn, or its lease released at once."""
    with api() as portal:
        found = portal.post(f"jobs/{safe_name(name)}/cancel/")
    output.say(f"{found['id']} is {found['state']}.")


@job.command("retry")
@guarded
def retry(name: JobId) -> None:
    """Run a job that did not succeed once more, in a new lease."""
    with api() as portal:
        found = portal.post(f"jobs/{safe_name(name)}/retry/")
    output.say(f"{found['id']} is {found['state']}.")


@secret.command("set")
@guarded
def set_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The variable's name, as WANDB_KEY.")],
) -> None:
    """Store a value, read from stdin or asked for; it is never shown again."""
    if sys.stdin.isatty():
        value = str(typer.prompt("Value", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n")
    with api() as portal:
        portal.put(f"secrets/{safe_name(name)}/", {"value": value})
    output.say(f"{name} is stored.")


@secret.command("list")
@guarded
def list_secrets(as_json: Json = False) -> None:
    """List the names of your secrets."""
    with api() as portal:
        found = portal.get("secrets/")["results"]
    cells = [(one["name"], formatting.when(one["changed_at"])) for one in found]
    output.listing(found, ("NAME", "STORED"), cells, empty="You have no secrets.", as_json=as_json)


@secret.command("remove")
@guarded
def remove_secret(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As “berth secret list” shows it.")],
) -> None:
    """Forget a secret."""
    with api() as portal:
        portal.delete(f"secrets/{safe_name(name)}/")
    output.say(f"{name} is removed.")


def _hand_in(body: Any, team: str, *, follow: bool, as_json: bool) -> None:
    with api() as portal:
        made = portal.post("jobs/", {"job": body, **({"team": team} if team else {})})
        if not follow:
            if as_json:
                output.out_json(made)
            else:
                output.out(made["id"])
                output.say(f"{len(made['jobs'])} job(s), {made['state']}.")
            return
        if len(made["jobs"]) > 1:
            output.out(made["id"])
            output.say("An array is not followed. See “berth jobs --array”.")
            return
        output.say(f"{made['id']} is {made['state']}. Ctrl-C leaves it running.")
        try:
            with _news_of(portal, made["id"]) as news:
                print_log(portal, made["id"], attempt=0, news=news)
                found = follow_job(portal, made["id"], news)
        except KeyboardInterrupt:
            output.say(f"It goes on. Come back with “berth job show {made['id']}”.")
            raise typer.Exit(STILL_WAITING) from None
    if as_json:
        output.out_json(found)
    else:
        output.say(f"{found['id']} {found['state']}: {found['outcome']}")
    code = exit_of(found)
    if code:
        raise typer.Exit(code)


def follow_job(portal: Any, uid: str, news: JobNews) -> Any:
    """Return a job once it has ended."""
    while (found := portal.get(f"jobs/{uid}/"))["state"] in OPEN:
        news.wait()
    return found


def exit_of(found: Any) -> int:
    """Return the exit code that stands for a job: its own, 128 and its signal, 124 where its time was up."""
    if found["state"] == "succeeded":
        return 0
    if found["state"] == "timed_out":
        return 124
    if found["exit_code"]:
        return int(found["exit_code"])
    return 128 + int(found["signal"]) if found["signal"] else UNKNOWN_END


def _ran(one: Any) -> str:
    return "" if one["ran_ms"] is None else formatting.span(one["ran_ms"] / 1000)


def _memory(one: Any) -> str:
    return "unknown" if one["peak_memory_mib"] is None else f"{one['peak_memory_mib']} MiB"


def _text_of(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as no:
        raise typer.BadParameter(
            f"{file} cannot be read: {getattr(no, 'strerror', None) or 'no text'}"
        ) from no


def safe_name(name: str) -> str:
    """Return the name of a job or a secret that can stand in an address; raises BadParameter."""
    if not name.replace("-", "").replace("_", "").isalnum():
        raise typer.BadParameter("this is no id")
    return name
