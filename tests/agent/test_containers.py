"""Jobs in containers, by the Podman of this host: skipped, with the reason, where it cannot be used."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodeagent.containers.boxes import PlayedContainers, container_name
from nodeagent.containers.podman import Podman, find_podman
from nodeagent.host.shell import HostShell
from nodeagent.jobs.folder import JobFolder
from nodeagent.protocol.messages import DesiredLease, JobReport
from nodeagent.workloads.entry import PlayedEntry
from tests.agent.images import write_layout
from tests.agent.test_jobs import A, Node, job

pytestmark = pytest.mark.containers


@pytest.fixture(scope="session")
def podman(tmp_path_factory) -> Podman:
    found = find_podman(HostShell(), is_root=os.geteuid() == 0, network="none")
    if isinstance(found, str):
        pytest.skip(found)
    folder = tmp_path_factory.mktemp("image")
    write_layout(folder / "try")
    words = [*found.base, "pull", f"oci:{folder}/try:1"]
    tried = subprocess.run(words, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"Podman cannot be used here: {tried.stderr.strip()[-200:]}")
    subprocess.run([*found.base, "rmi", "-f", tried.stdout.split()[-1]], capture_output=True, check=True)
    return found


@pytest.fixture
def node(tmp_path: Path, podman: Podman) -> Iterator[Node]:
    layouts = tmp_path / "images"
    digest = write_layout(layouts / "team" / "tools", ("1", "2"))
    node = Node(tmp_path / "state")
    node.state.mkdir()
    node.images, node.digest = layouts, digest  # type: ignore[attr-defined]

    def opened(entry: PlayedEntry) -> PlayedContainers:
        return PlayedContainers(podman, entry, node.reconciler.notice_of)

    node.containers = opened
    before = _images(podman)
    yield node
    subprocess.run([*podman.base, "rm", "-f", "-i", "-t", "0", container_name((A, 1))], check=False)
    for image in _images(podman) - before:
        subprocess.run([*podman.base, "rmi", "-f", image], capture_output=True, check=False)


def _images(podman: Podman) -> set[str]:
    said = subprocess.run([*podman.base, "images", "-q"], capture_output=True, text=True, check=True)
    return set(said.stdout.split())


def boxed(*words: str, image: str = "oci:team/tools:1", **more: object) -> DesiredLease:
    return job(A, *words, image=image, **more)


async def test_job_runs_in_its_image_as_the_holder_with_what_the_lease_gives(node, podman):
    script = (
        'echo "$FROM_IMAGE $LR $KEY $BERTH_LEASE"; id -u; touch kept && ls kept; touch /etc/x 2>&1;'
        "while read -r name value; do case $name in CapEff:) echo $value;; esac; done </proc/self/status; exit 7"
    )
    async with node.alive():
        kept = {"artifacts": ("kept", "shadow"), "most_files": 9, "most_bytes": 9999}
        given = {"env": {"LR": "1e-4"}, "secrets": {"KEY": "hunter-12345"}}
        node.desire(boxed("sh", "-c", f"ln -s /etc shadow; {script}", **given, **kept))
        report = await node.until(A, "exited")
        await node.idle()
        found, _place = JobFolder(node.state / "jobs", (A, 1)).found()
    said, uid, kept, refused, rights = node.output(A).decode().splitlines()

    assert (report.exit, report.digest, report.peak_mib) == (7, node.digest, None)
    assert said == f"yes 1e-4 *** {A}"
    assert int(uid) != 0
    assert kept == "kept"
    assert "Read-only" in refused
    assert int(rights, 16) == 0
    assert [file.path for file in found if not file.left_out] == ["kept"]
    words = [*podman.base, "ps", "-aq", "--filter", f"name={container_name((A, 1))}"]
    assert not subprocess.run(words, capture_output=True, check=True).stdout


async def test_digest_that_is_named_is_that_image_or_nothing(node):
    other = "sha256:" + "0" * 64
    async with node.alive():
        node.desire(boxed("true", image=f"oci:team/tools@{other}"))
        report = await node.until(A, "exited")

    assert (report.why, other in report.word) == ("image_digest", True)
    assert node.record(A).active_ms == 0  # its holder was never let in


async def test_broken_image_ends_in_a_sentence(node):
    for blob in (node.images / "team" / "tools" / "blobs" / "sha256").iterdir():
        if blob.stat().st_size > 100_000:
            blob.write_bytes(blob.read_bytes()[:-1000])
    async with node.alive():
        node.desire(boxed("true"))
        report = await node.until(A, "exited")

    assert report.why.startswith("image"), report
    assert report.word


async def test_job_in_a_container_is_asked_before_its_end_and_found_again(node):
    script = "trap 'echo asked; exit 0' TERM; echo begun; while :; do sleep 0.05; done"
    wanted = boxed("sh", "-c", script, ask_before_s=30)
    async with node.alive():
        node.desire(wanted)
        await node.until(A, "running")
        while b"begun" not in node.output(A):
            await node.pause()
    async with node.alive():
        node.desire(replace(wanted, remaining_s=20))
        report = await node.until(A, "exited")

    assert (report.exit, report.is_asked) == (0, True), report
    assert node.output(A) == b"begun\nasked\n"


async def test_killed_container_is_gone_with_its_lease(node, podman):
    async with node.alive():
        node.desire(boxed("sh", "-c", "trap '' TERM; echo begun; while :; do sleep 0.05; done"))
        while (node.report(A) or JobReport("waiting")).phase != "running" or b"begun" not in node.output(A):
            await node.pause()
        node.desire()
        await node.until(A, "exited", "lost")
        await node.idle()
    words = [*podman.base, "ps", "-aq", "--filter", f"name={container_name((A, 1))}"]
    assert not subprocess.run(words, capture_output=True, check=True).stdout
