"""Jobs in containers, by the Podman of this host: skipped, with the reason, where it cannot be used."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from nodeagent.containers.boxes import PlayedContainers, container_name
from nodeagent.containers.entry import ContainerEntry
from nodeagent.containers.podman import Podman, find_podman
from nodeagent.host.shell import HostShell
from nodeagent.jobs.folder import JobFolder
from nodeagent.protocol.messages import DesiredLease, JobReport
from nodeagent.protocol.ssh import preface
from nodeagent.runtimes.host_folders import HostFolders
from nodeagent.runtimes.scratch import ScratchFolders
from nodeagent.streams.dialing import Dialers, DialFailedError
from nodeagent.streams.shells import session_of, start_shell
from nodeagent.workloads.entry import PlayedEntry, played_account, start
from tests.agent.images import write_layout
from tests.agent.job_node import A, Node, job
from tests.agent.test_ssh_session import HOST, MINE, public

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


async def test_job_in_a_container_has_scratch_and_only_reads_data_sets(node, tmp_path):
    data = tmp_path / "data"
    (data / "vision").mkdir(parents=True)
    (data / "vision" / "labels").write_text("cats\n")
    (data / "vision").chmod(0o777)
    (data / "speech").mkdir()
    scratch = ScratchFolders(tmp_path / "scratch", lambda user: played_account())
    node.folders = HostFolders(scratch, data)
    script = (
        'read -r word <"$BERTH_DATA_SETS/labels"; echo "$word" >"$BERTH_SCRATCH/mine";'
        'read -r word <"$BERTH_SCRATCH/mine"; echo "$word";'
        f'touch "$BERTH_DATA_SETS/x" 2>&1; ls {data}'
    )
    async with node.alive():
        node.desire(boxed("sh", "-c", script))
        report = await node.until(A, "exited")
        await node.idle()
    said = node.output(A).decode().splitlines()
    scratch.wait()
    scratch.close()

    assert (report.exit, said[0], said[2:]) == (0, "cats", ["vision"]), said
    assert "Read-only" in said[1]
    assert scratch.keys() == []


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


# A program of the image that listens: played, as the image has none.
LISTENS = """
import socket, sys
from nodeagent.workloads.inside import join, place_of
join(place_of(sys.argv[1]))
with socket.create_server(("127.0.0.1", 7860)) as one:
    print(flush=True)
    one.accept()[0].sendall(b"from inside")
"""


async def test_whoever_comes_into_a_lease_is_in_its_container_and_leaves_nothing_behind(node):
    async with node.alive():
        node.desire(boxed("sh", "-c", "echo begun; while :; do sleep 0.05; done", env={"LR": "1e-4"}))
        while b"begun" not in node.output(A):
            await node.pause()
        record = node.record(A)
        entry = ContainerEntry(node.entry, node.containers(node.entry))
        shell = await asyncio.to_thread(start_shell, entry, record, 24, 80)
        os.write(
            shell.terminal,
            b"echo $FROM_IMAGE-$LR; ls /mark; touch /x; cat /proc/self/status; sleep 7 & sleep 9\n",
        )
        said = b""
        async with asyncio.timeout(20):
            while b"NoNewPrivs:\t1" not in said:
                with contextlib.suppress(BlockingIOError):
                    said += os.read(shell.terminal, 4096)
                await node.pause()
        inside = session_of(shell.process.pid)
        os.write(shell.terminal, b"\x03")  # reaches the program in front: job control works in there
        os.write(shell.terminal, b"exit 7\n")
        assert await asyncio.to_thread(shell.process.wait, 20) == 7
        os.close(shell.terminal)
        assert all(
            word in said for word in (b"yes-1e-4", b"/mark\r\n", b"Read-only", b"CapEff:\t" + b"0" * 16)
        ), said
        assert len(inside) > 2

        words = list(entry.command(record).words)
        listens = subprocess.Popen([sys.executable, "-c", LISTENS, words[-1]], stdout=subprocess.PIPE)
        await asyncio.to_thread(listens.stdout.readline)
        dialers = Dialers(entry)
        with await dialers.dial(record, port=7860) as made:
            made.setblocking(True)
            assert await asyncio.to_thread(made.recv, 99) == b"from inside"
        with pytest.raises(DialFailedError):  # nobody listens there outside of it
            await Dialers(node.entry).dial(record, port=7860)
        await dialers.close()
        listens.communicate()

        ours, theirs = socket.socketpair()
        with theirs:
            server = start(entry.ssh_session(record), stdin=theirs)
        ours.sendall(
            preface({"host_key": HOST.export_private_key().decode()}) + preface({"keys": [public(MINE)]})
        )
        ours.setblocking(False)
        options = {"client_keys": [MINE], "known_hosts": None, "config": None, "agent_path": None}
        async with asyncssh.connect("lease", sock=ours, username="berth", **options) as session:
            assert (await session.run("echo $FROM_IMAGE; id -u; exit 3")).exit_status == 3
            async with session.start_sftp_client() as files:
                assert await files.exists("/mark")
        assert await asyncio.to_thread(server.wait, 20) == 0

        node.desire()
        await node.until(A, "exited", "lost")
        await node.idle()
        gone = start(entry.command(record, ["true"]), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert b"not running" in (await asyncio.to_thread(gone.communicate))[1]
