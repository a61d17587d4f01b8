"""Images of jobs without any engine: names, layouts, Podman's words, and a lease that waits for its image."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeagent.commands.check import container_words
from nodeagent.containers import boxes, pulling
from nodeagent.containers.boxes import PlayedContainers, UnitContainers, container_name, remove_container
from nodeagent.containers.cache import ImageCache, KeptImage
from nodeagent.containers.entry import ContainerEntry
from nodeagent.containers.layouts import find_in_layout
from nodeagent.containers.podman import ContainerBox, Podman, find_podman
from nodeagent.containers.pulling import ImagePulls
from nodeagent.containers.room import while_there_is_room
from nodeagent.containers.words import ImageRefusedError, refusal_of
from nodeagent.host.accounts import Account
from nodeagent.host.shell import Done
from nodeagent.protocol.codec import decode, encode
from nodeagent.protocol.images import image_of
from nodeagent.protocol.jobs import JobOrder, order_of
from nodeagent.reconcile.lease_records import NS, new_record
from nodeagent.runtimes.engines import device_lines, version_of
from nodeagent.workloads.entry import HolderCommand, UnitEntry
from nodeagent.workloads.inside import JoinError, join, place_of
from tests.agent.images import write_layout
from tests.agent.job_node import A, Node, job

DIGEST = "sha256:" + "a" * 64
# Plays Podman: fetches once a file is there, and runs what comes behind the image as it is.
PLAYED = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in
    pull) echo "Copying blob sha256:1" >&2; echo "Copying blob sha256:2" >&2
      while [ ! -e HERE/go ]; do sleep 0.01; done
      [ -s HERE/go ] && { cat HERE/go >&2; exit 125; }
      echo image-id; exit 0;;
    inspect) case "$*" in *RepoTags*) cat HERE/tags 2>/dev/null; exit 0;; esac
      echo "image-id 3145729 DIGEST x@DIGEST"; exit 0;;
    rm) exit 0;;
    rmi) echo "$*" >> HERE/removed  # by its id none is removed that has several names
      [ "$3" = image-id ] && [ "$(cat HERE/tags 2>/dev/null | wc -l)" -gt 1 ] && exit 2
      exit 0;;
    --env-file=*) while IFS= read -r line; do export "$line"; done <"${1#*=}";;
    image-id) shift; exec "$@";;
  esac
  shift
done
"""


@pytest.mark.parametrize(
    ("text", "spoken"),
    [
        ("registry.example/team/pytorch:2.9", "registry.example/team/pytorch:2.9"),
        ("registry.example:5000/a", "registry.example:5000/a:latest"),
        ("buildhost:5000/a:1", "buildhost:5000/a:1"),
        (f"registry.example/a:2@{DIGEST}", f"registry.example/a@{DIGEST}"),
        ("localhost/mine:1", "localhost/mine:1"),
        ("oci:team/tools:1", "oci:team/tools:1"),
    ],
)
def test_image_is_named_with_the_host_it_comes_from(text, spoken):
    image = image_of(text)

    assert image is not None
    assert image.text == spoken


@pytest.mark.parametrize(
    "text",
    [
        "pytorch", "team/pytorch:2", "--root=/x", "registry.example/../a", "registry.example/A", "docker://a.b/c",
        "a.b/c:t@sha256:12", "a.b/c d", "oci:/etc:1", "oci:../x:1", "a.b/c:", "x" * 301, "dir:/x", "",
    ],
)  # fmt: skip
def test_what_is_no_image_is_refused(text):
    assert image_of(text) is None


def test_tag_of_a_layout_has_a_digest_and_a_digest_a_tag(tmp_path):
    digest = write_layout(tmp_path / "team" / "tools", ("1", "2"))
    folder = str(tmp_path / "team" / "tools")

    by_tag = find_in_layout(tmp_path, image_of("oci:team/tools:2"))
    by_digest = find_in_layout(tmp_path, image_of(f"oci:team/tools@{digest}"))

    assert (by_tag.source, by_tag.digest, by_tag.is_exact) == (f"oci:{folder}:2", digest, True)
    assert by_digest.source == f"oci:{folder}:1"
    for text, why in (
        ("oci:team/tools:9", "image_missing"), ("oci:none:1", "image_missing"),
        (f"oci:team/tools@{DIGEST}", "image_digest"),
    ):  # fmt: skip
        with pytest.raises(ImageRefusedError) as no:
            find_in_layout(tmp_path, image_of(text))
        assert no.value.why == why
    with pytest.raises(ImageRefusedError, match="--image-folder"):
        find_in_layout(None, image_of("oci:team/tools:1"))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("Trying\nError: initializing source: manifest unknown: manifest unknown", "image_missing"),
        ("Error: writing blob: write /x: no space left on device", "image_space"),
        ("Error: reading manifest: unauthorized: access to the resource is denied", "image_denied"),
        ("Error: pinging registry: dial tcp: lookup a.b: no such host", "image_unreachable"),
        ("Error: something new", "image"),
        ("", "image"),
    ],
)
def test_what_podman_says_becomes_one_of_our_words(said, why):
    assert refusal_of(said).why == why
    assert refusal_of(said).detail


class PlayedShell:
    def __init__(self, version: str) -> None:
        self.version = version

    def run(self, argv, **_more):
        return Done(0, f"podman version {self.version}\n")


def found(
    *programs: str, version: str = "4.3.1", is_root: bool = False, hybrid: bool = False, network="private"
):
    return find_podman(
        PlayedShell(version),
        is_root=is_root,
        network=network,
        which=lambda name: f"/usr/bin/{name}" if name in programs else None,
        exists=lambda path: hybrid and path == "/sys/fs/cgroup/unified",
    )


def test_host_that_cannot_run_containers_says_what_is_missing():
    whole = ("podman", "crun", "catatonit", "newuidmap", "slirp4netns")

    assert found(*whole).runtime == "crun"
    assert found(*whole, "runc", is_root=True, hybrid=True).runtime == "runc"
    for missing, word in (
        ("podman", "podman is not"), ("crun", "crun"), ("catatonit", "catatonit"), ("newuidmap", "uidmap"),
        ("slirp4netns", "--container-network"),
    ):  # fmt: skip
        said = found(*(one for one in whole if one != missing))
        assert word in str(said), said
    assert "4.3" in found(*whole, version="3.4.4")
    assert "both versions" in found(*whole, hybrid=True)
    assert isinstance(found(*whole[:4], network="none"), Podman)


def test_lines_for_people_fit_the_version():
    assert "--cdi-spec-dir" not in device_lines(version_of("podman version 4.3.1"))["lease"]
    assert "--cdi-spec-dir /var/run/cdi run" in device_lines(version_of("podman version 5.5.0"))["root"]
    assert device_lines(None) == {}
    assert any("4.3.1" in line for line in container_words({"podman": "4.3.1", "missing": None, "lines": {}}))


def test_container_stays_in_its_lease_and_gets_no_more_than_that():
    box = ContainerBox(
        "berth-l-1", {"berth.lease": "l"}, "1001:1001", "/home/ada", {"KEY": "hunter"}, ("berth.local/lease=l",),
        memory_mib=8192,
    )  # fmt: skip
    words = Podman((5, 5, 0), "podman", "crun", is_root=False).run(box, "id", ["python"], "~/project")

    assert words[-2:] == ["id", "python"]
    for word in (
        "--cgroups=disabled", "--userns=keep-id", "--cap-drop=all", "--security-opt=no-new-privileges", "--read-only",
        "--init", "--user=1001:1001", "--volume=/home/ada:/home/ada:rw", "--workdir=/home/ada/project",
        "--device=berth.local/lease=l", "--shm-size=4096m", "--label=berth.lease=l", "--cdi-spec-dir",
    ):  # fmt: skip
        assert word in words, word
    assert not any("hunter" in word or word.startswith(("--network", "--privileged")) for word in words)


def test_holder_of_a_unit_runs_their_own_podman_and_pulls_without_devices():
    ada = Account(1001, 1001, "/home/ada", "ada")
    containers = UnitContainers(Podman((4, 9, 0), "podman", "crun", is_root=False), lambda _user: ada)
    record = new_record(job("l", "true", image="oci:a:1"), 0)
    record.entrance = {"cdi": "berth.local/lease=l"}

    pull = list(containers.engine("ada", "l-1", ["podman", "pull", "x"]).words)

    assert pull[-3:] == ["podman", "pull", "x"]
    assert {"--uid=ada", "--property=DevicePolicy=closed", "--setenv=HOME=/home/ada"} <= set(pull)
    assert containers.box(record).devices == ("berth.local/lease=l",)


def test_lease_with_an_image_is_entered_by_its_container_and_any_other_as_ever(tmp_path):
    ada = Account(1001, 1001, "/home/ada", "ada")
    plain = UnitEntry(tmp_path, lambda key: 4711, lambda key: [], lambda _user: ada)
    containers = UnitContainers(Podman((4, 9, 0), "podman", "crun", is_root=False), lambda _user: ada)
    entry = ContainerEntry(plain, containers)
    record, bare = new_record(job("l", "true", image="oci:a:1"), 0), new_record(job("l", "true"), 0)
    record.entrance = {"cdi": "berth.local/lease=l"}

    shell, app = entry.command(record), entry.command(record, ["serve"], {"TOKEN": "hunter"})
    place = place_of(list(app.words)[-2])

    assert list(app.words)[-1] == "serve"
    assert (list(place.inspect)[-1], list(place.keeps)) == (container_name(record.key), ["TOKEN"])
    assert (place.uid, place.home) == (None, "/home/ada")  # rootless: who comes in is the holder already
    assert list(shell.words)[:3] == [
        "nsenter",
        "--target",
        "4711",
    ]  # in the lease's unit, as without an image
    assert not any("hunter" in word for word in app.words)
    assert entry.command(bare) == plain.command(bare)
    assert entry.ssh_session(bare) == plain.ssh_session(bare)
    assert entry.dialer(bare, 5) == plain.dialer(bare, 5)
    with pytest.raises(JoinError, match="not running"):
        join(replace(place, inspect=["/bin/false"]))


def test_order_names_an_image_only_where_there_is_one():
    assert "image" not in JobOrder(("true",)).text()
    assert order_of(JobOrder(("true",), image="oci:a:1").text()).image == "oci:a:1"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    program = tmp_path / "podman"
    program.write_text(PLAYED.replace("HERE", str(tmp_path)).replace("DIGEST", DIGEST))
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    node = Node(tmp_path / "state")
    node.state.mkdir()
    podman = Podman((4, 3, 1), str(program), "runc", is_root=os.geteuid() == 0)
    node.containers = lambda entry: PlayedContainers(podman, entry, node.reconciler.notice_of)
    node.go = lambda text="": (tmp_path / "go").write_text(text)
    return node


def wanted(*words: str, **more: object):
    return job(A, *words, image="registry.example/a:1", **more)


async def test_lease_waits_for_its_image_with_its_time_untouched(node):
    async with node.alive():
        node.desire(wanted("sh", "-c", 'echo "$KEY"', secrets={"KEY": "two words"}))
        async with asyncio.timeout(20):
            while (node.report(A).why, node.report(A).word) != ("pulling", "2 layers"):
                await node.pause()
        record = node.record(A)
        assert record.phase == "preparing"
        assert record.is_standing
        span = record.deadline - record.taken_at
        record.deadline -= 2 * span  # as if it had taken longer than the job may
        record.taken_at -= 2 * span
    async with node.alive():  # the next agent lets nobody in either before it knows
        assert node.phase(A) == "preparing"
        node.go()
        node.desire(wanted("sh", "-c", 'echo "$KEY"', secrets={"KEY": "two words"}))
        report = await node.until(A, "exited")

    assert (report.exit, report.digest) == (0, DIGEST), report
    assert node.output(A) == b"***\n"
    assert node.record(A).active_ms is not None


async def test_image_that_cannot_be_had_ends_the_job_before_anybody_pays(node):
    node.go("Error: initializing source: manifest unknown\n")
    async with node.alive():
        node.desire(wanted("true"))
        report = await node.until(A, "exited")

    assert (report.why, report.exit) == ("image_missing", 126)
    assert "manifest unknown" in report.word
    assert node.record(A).active_ms == 0


async def test_time_goes_on_from_where_the_image_is_there(node):
    async with node.alive():
        node.desire(wanted("sleep", "30"))
        while node.report(A).why != "pulling":
            await node.pause()
        record = node.record(A)
        left = record.deadline - record.taken_at
        node.go()
        await node.until(A, "running")

        assert abs(record.deadline - record.ready_at - left) < NS


# Fetches without end, and says what it keeps until then; its disk has a GiB less each time that somebody looks.
ENDLESS = """#!/bin/sh
case "$*" in *info*) exit 0;; esac
echo blob >"$TMPDIR/blob"
while :; do sleep 0.01; done
"""
SHRINKING = """#!/bin/sh
left=$(cat HERE/left); echo $((left - 1)) >HERE/left
echo Filesystem; echo "/dev/x 9 9 $((left * 1048576)) 9% /"
"""


@pytest.mark.parametrize(
    ("left", "most_mib", "said"),
    [
        (100, 3 * 1024, "it takes more than the 3 GiB that images may take"),
        (5, 0, "less than 2 GiB of disk would be left"),
        (1, 0, "less than 2 GiB of disk would be left"),
    ],
)
def test_image_without_end_is_left_out_before_the_disk_is_full(tmp_path, left, most_mib, said):
    for name, text in (("podman", ENDLESS), ("df", SHRINKING.replace("HERE", str(tmp_path)))):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "left").write_text(str(left))
    (tmp_path / "kept").mkdir()
    podman = [str(tmp_path / "podman")]
    words = while_there_is_room(podman, [*podman, "pull", "x"], most_mib, every="0.02")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path / "kept"), "HOME": str(tmp_path)}

    ended = subprocess.run(words, env=env, capture_output=True, text=True, timeout=20, check=False)

    assert ended.returncode == 125
    refusal = refusal_of(ended.stderr)
    assert (refusal.why, refusal.detail) == ("image_space", said)
    assert not list((tmp_path / "kept").iterdir())
    assert not any(
        "${" in word or "$$" in word or word.startswith("$") for word in words
    )  # systemd replaces those


async def test_images_beyond_the_limit_go_by_last_use_and_never_one_that_is_used_or_made_here(tmp_path):
    removed, refuses = [], set()
    using = new_record(job("l", "true", image="oci:used:1"), 0)

    async def remove(image):
        removed.append(image.names[-1])
        return image.id not in refuses

    def life(limit_mib: int) -> ImageCache:
        return ImageCache(tmp_path / "images.json", limit_mib, lambda: [using], remove)

    cache = life(100)
    for at, name in enumerate(("oci:used:1", "localhost/mine:1", "a.b/stuck:1", "a.b/old:1", "a.b/new:1")):
        cache.note("ada", name, f"id-{at}", DIGEST, 30 << 20)
    refuses.add("id-2")
    cache.note("ada", "a.b/old:again", "id-3", DIGEST, 30 << 20)  # the same image, by another name
    await life(0).tidy()
    assert (removed, cache.used_mib) == ([], 150)

    await life(100).tidy()  # the next agent knows what the one before has fetched
    assert removed == ["a.b/stuck:1", "a.b/new:1", "a.b/old:again"]
    told = life(100).told(7)
    assert [one.name for one in told.images] == ["a.b/stuck:1", "localhost/mine:1", "oci:used:1"]
    assert (told.used_mib, told.limit_mib, told.images[0].holder, told.images[0].size_mib) == (
        90,
        100,
        "ada",
        30,
    )
    assert decode(encode(told)) == told
    (tmp_path / "images.json").write_text("[{}]")
    assert life(100).told(7).images == ()


async def test_image_of_a_job_is_noted_and_goes_when_its_lease_has_gone(node, tmp_path):
    node.limit_mib = 1
    node.go()
    async with node.alive():
        cache = node.jobs._cache
        node.desire(wanted("sleep", "30"))
        await node.until(A, "running")
        assert [(one.name, one.holder, one.size_mib) for one in cache.told(1).images] == [
            ("registry.example/a:1", "", 4)
        ]
        node.desire()
        async with asyncio.timeout(20):
            while cache.told(1).images:
                await node.pause()
    assert cache.used_mib == 0


async def test_image_with_several_names_goes_by_all_of_them_and_one_that_its_holder_named_stays(
    node, tmp_path
):
    def kept(*names: str) -> KeptImage:
        return KeptImage("", "image-id", DIGEST, 1, names)

    async with node.alive():
        remove = node.jobs._cache._remove
        (tmp_path / "tags").write_text(
            "registry.example/a:1\nregistry.example/a:latest\nlocalhost/2:latest\n"
        )
        assert await remove(kept("registry.example/a:1", "registry.example/a", "oci:team/tools:2"))
        assert not await remove(
            kept("registry.example/a:1", "oci:team/tools:2")
        )  # the third is the holder's own
        (tmp_path / "tags").write_text("")
        assert await remove(kept(f"registry.example/a@{DIGEST}"))

    assert (tmp_path / "removed").read_text().splitlines() == [
        "rmi --ignore registry.example/a:1 registry.example/a:latest localhost/2:latest",
        "rmi --ignore image-id",
    ]


async def test_node_without_podman_says_so(node):
    node.containers = None
    async with node.alive():
        node.desire(wanted("true"))
        report = await node.until(A, "exited")

    assert report.why == "no_containers"


async def test_variable_of_several_lines_is_refused_by_its_name(node):
    node.go()
    async with node.alive():
        node.desire(wanted("true", env={"PEM": "a\nb"}))
        report = await node.until(A, "exited")

    assert (report.why, "PEM" in report.word) == ("bad_variable", True)


class SlowContainers:
    """Podman whose every command takes an hour, in a unit of its own."""

    def __init__(self) -> None:
        self.podman = Podman((4, 9, 0), "podman", "crun", is_root=False)
        self.stopped: list[str] = []

    def engine(self, user, why, words):
        words = ["sh", "-c", "echo Copying blob x; exec sleep 3600"]
        return HolderCommand(words, {"PATH": "/usr/bin:/bin"}, "/", None, None, f"u-{why}")

    def stop(self, unit):
        self.stopped.append(unit)


def waiting_for_image(name: str, user: str = "bob"):
    return new_record(replace(job(name, "true", image="registry.example/a:1"), user=user), 0)


async def test_pull_that_nobody_waits_for_is_ended_with_its_unit(tmp_path):
    containers = SlowContainers()
    pulls = ImagePulls(containers, None, lambda: None)
    record = waiting_for_image("a")
    pull = pulls.of(record)
    task = pull.task
    while not pull.layers:
        await asyncio.sleep(0.01)

    pulls.forget([record.key])
    await asyncio.gather(task, return_exceptions=True)

    assert containers.stopped == ["u-a-1"]


def test_removal_of_a_container_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(boxes, "REMOVED_WITHIN_S", 0.01)
    containers = SlowContainers()

    remove_container(containers, waiting_for_image("a"))

    assert containers.stopped == ["u-a-1"]


def test_unit_of_a_pull_is_bound_and_ended_by_its_name():
    asked: list[list[str]] = []
    shell = SimpleNamespace(run=lambda words: asked.append(words))
    ada = Account(1001, 1001, "/home/ada", "ada")
    podman = Podman((4, 9, 0), "podman", "crun", is_root=False)
    containers = UnitContainers(podman, lambda _user: ada, shell)

    command = containers.engine("ada", "a-1", ["podman"])
    containers.stop(command.unit)

    assert {"--property=MemoryMax=4G", "--property=TasksMax=1024", f"--unit={command.unit}"} <= set(
        command.words
    )
    assert asked == [["systemctl", "stop", "--no-block", command.unit]]


async def test_slow_images_of_one_holder_hold_up_no_other_and_nobody_waits_for_ever(monkeypatch):
    monkeypatch.setattr(pulling, "LONGEST_WAIT_S", 0.2)
    pulls = ImagePulls(SlowContainers(), None, lambda: None)
    mine = [pulls.of(waiting_for_image(f"m{number}")) for number in range(4)]
    other = pulls.of(waiting_for_image("o", "ada"))

    while not (mine[3].refusal and other.is_begun):
        await asyncio.sleep(0.01)
    began = [pull.is_begun for pull in mine]
    await pulls.close()

    assert began == [True, False, False, False]
    assert mine[3].refusal.why == "image_slow"
    assert other.refusal is None
