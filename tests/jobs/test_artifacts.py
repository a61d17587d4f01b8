"""The files that jobs leave, in the store: each byte once, no more than is allowed, and for those who may read them."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import ALL_SENT, FILE, LEFT_OUT, MOST_FILE_PIECE, ArtifactPiece, pack, unpack
from portal.common.downloads import MOST_EACH
from portal.jobs import artifacts
from portal.jobs.artifacts import forget_artifacts, store_artifact
from portal.jobs.models import Artifact, ArtifactPart, JobAttempt
from tests.agents.test_reports import Desk
from tests.jobs.test_jobs import JobReport, desk, says, started  # noqa: F401
from tests.jobs.test_logs import folder  # noqa: F401
from tests.portal.builders import World
from tests.web.conftest import signed_in  # noqa: F401

pytestmark = pytest.mark.django_db


class Bringer:
    """A node that brings what one attempt left."""

    def __init__(self, world: World, desk: Desk) -> None:  # noqa: F811
        self.now = world.now
        self.desk = desk
        self.job, self.lease = started(world, desk)

    def bring(
        self, path: str, data: bytes, offset: int = 0, whole: bytes = b"", **more: Any
    ) -> tuple[int, bool]:
        whole = whole or data
        said = {"size": len(whole), "sha256": hashlib.sha256(whole).hexdigest(), **more}
        return self.say(ArtifactPiece(FILE, self.lease.uid, 1, path, offset=offset, **said), data)

    def say(self, piece: ArtifactPiece, data: bytes = b"") -> tuple[int, bool]:
        again, received = unpack(pack(piece, data))
        assert isinstance(again, ArtifactPiece)
        stored = store_artifact(self.lease.node_id, again, received, now=self.now)
        return stored.offset, stored.is_done

    def end(self) -> None:
        says(self.desk, self.lease, "gone", JobReport("exited", exit=0, ran_ms=5))


@pytest.fixture
def bringer(world: World, desk: Desk) -> Bringer:  # noqa: F811
    return Bringer(world, desk)


def shown(client: Any, bringer: Bringer, artifact: Artifact) -> Any:
    return client.get(f"/jobs/{bringer.job.uid}/artifacts/{artifact.pk}/")


def test_piece_that_comes_twice_or_overlaps_is_stored_once_and_the_whole_is_checked(
    bringer: Bringer,
    signed_in: Any,  # noqa: F811
) -> None:
    whole = b"0123456789"
    assert bringer.bring("out/m.ckpt", whole[:4], 0, whole) == (4, False)
    assert bringer.bring("out/m.ckpt", whole[:4], 0, whole) == (4, False)
    assert bringer.bring("out/m.ckpt", whole[8:], 8, whole) == (4, False)  # what lies between has not come
    assert shown(signed_in("bob"), bringer, Artifact.objects.get()).status_code == 404
    assert bringer.bring("out/m.ckpt", whole[2:], 2, whole) == (10, True)
    assert bringer.bring("out/m.ckpt", whole[2:], 2, whole) == (10, True)
    assert bringer.bring("out/empty", b"") == (0, True)

    artifact = Artifact.objects.get(path="out/m.ckpt")
    answer = shown(signed_in("bob"), bringer, artifact)

    assert list(ArtifactPart.objects.values_list("offset", "size")) == [(0, 4), (4, 6)]
    assert b"".join(answer.streaming_content) == whole
    assert answer["Content-Disposition"] == 'attachment; filename="m.ckpt"'
    assert (answer["X-Content-Type-Options"], answer["Content-Type"]) == (
        "nosniff",
        "application/octet-stream",
    )
    assert answer["ETag"] == f'"{hashlib.sha256(whole).hexdigest()}"'


def test_file_that_is_not_what_it_was_on_its_node_is_not_kept(bringer: Bringer, folder: Path) -> None:  # noqa: F811
    assert bringer.bring("out/m", b"other", sha256="0" * 64) == (0, True)

    artifact = Artifact.objects.get()
    assert (artifact.left_out, artifact.stored, ArtifactPart.objects.count()) == ("damaged", 0, 0)


def test_whole_file_is_read_again_outside_any_transaction_and_its_bytes_stay_when_that_fails(
    bringer: Bringer,
    signed_in: Any,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside, seen = len(connection.savepoint_ids), []
    digest_of = artifacts._digest

    def digest(artifact: Artifact) -> str:
        seen.append(len(connection.savepoint_ids) - outside)
        assert bringer.bring("m", b"") == (4, False)  # who brings it again meanwhile is told to wait
        if len(seen) == 1:
            raise OSError("the storage is away")
        return digest_of(artifact)

    monkeypatch.setattr(artifacts, "_digest", digest)
    with pytest.raises(OSError, match="away"):
        bringer.bring("m", b"data")
    artifact = Artifact.objects.get()
    before = shown(signed_in("bob"), bringer, artifact).status_code
    assert (before, artifact.stored, artifact.is_checked) == (404, 4, False)

    assert bringer.bring("m", b"data") == (4, True)

    artifact.refresh_from_db()
    assert (seen, artifact.is_checked) == ([0, 0], True)
    assert shown(signed_in("bob"), bringer, artifact).status_code == 200


def test_further_download_of_one_person_is_refused_at_once_with_a_sentence(
    bringer: Bringer,
    signed_in: Any,  # noqa: F811
) -> None:
    bringer.bring("m", b"data")
    artifact, bob = Artifact.objects.get(), signed_in("bob")
    running = [shown(bob, bringer, artifact) for _ in range(MOST_EACH)]

    page = shown(bob, bringer, artifact)
    called = bob.get(f"/api/v1/jobs/{bringer.job.uid}/artifacts/{artifact.pk}/")

    assert (page.status_code, "4 downloads of yours are running" in page.content.decode()) == (429, True)
    assert (called.status_code, called.json()["code"]) == (429, "too_many_downloads")
    assert shown(signed_in("alice"), bringer, artifact).status_code == 200
    assert b"".join(running[0].streaming_content) == b"data"
    assert shown(bob, bringer, artifact).status_code == 200


def test_node_brings_no_more_than_is_allowed(bringer: Bringer, settings: Any) -> None:
    settings.JOB_ARTIFACT_MIB, settings.JOB_ARTIFACT_FILES = 1, 2
    large = b"x" * (700 * 1024)
    bringer.bring("a", large[:MOST_FILE_PIECE], 0, large)
    bringer.bring("b", large[:MOST_FILE_PIECE], 0, large)
    bringer.bring("c", b"1")
    bringer.bring("d", b"2")
    bringer.say(ArtifactPiece(LEFT_OUT, bringer.lease.uid, 1, "e", why="no_file"))

    kept = dict(Artifact.objects.values_list("path", "left_out"))
    assert kept == {"a": "", "b": "too_big", "c": "", "d": "too_many", "e": "no_file"}
    assert bringer.bring("c", b"12345", 1, b"1")[1]  # never more than its size
    assert Artifact.objects.get(path="c").stored == 1


def test_nobody_brings_files_of_a_job_of_another_node_nor_after_the_last(
    world: World, bringer: Bringer
) -> None:
    piece = ArtifactPiece(FILE, bringer.lease.uid, 1, "forged", 1, "0" * 64)
    other = world.nodes["gpu-03"].pk
    assert other != bringer.lease.node_id
    assert store_artifact(other, piece, b"x", now=world.now).is_done

    assert bringer.say(ArtifactPiece(ALL_SENT, bringer.lease.uid, 1)) == (0, True)
    assert JobAttempt.objects.get().artifacts_are_closed
    assert bringer.bring("late", b"x")[1]
    assert not Artifact.objects.exists()


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "out/../../up", "a\nb", "x" * 301])
def test_path_that_leads_elsewhere_is_no_frame(bringer: Bringer, path: str) -> None:
    with pytest.raises(ProtocolError):
        unpack(pack(ArtifactPiece(FILE, bringer.lease.uid, 1, path)))


def test_files_go_when_their_time_is_over_and_are_still_named(
    world: World,
    bringer: Bringer,
    folder: Path,  # noqa: F811
    django_capture_on_commit_callbacks: Any,
) -> None:
    bringer.bring("out/m", b"data")
    assert len(list(folder.rglob("*-0"))) == 1
    bringer.end()
    later = world.now + timedelta(days=31)

    with django_capture_on_commit_callbacks(execute=True):
        assert forget_artifacts(now=world.now + timedelta(days=29)) == 0
        assert forget_artifacts(now=later) == 1
    assert forget_artifacts(now=later) == 0

    assert not list(folder.rglob("*-0"))
    assert Artifact.objects.get().removed_at == later
    assert bringer.bring("out/m", b"data")[1]
    assert not ArtifactPart.objects.exists()


def test_page_receipt_and_api_name_what_came_and_what_did_not(
    bringer: Bringer,
    world: World,
    signed_in: Any,  # noqa: F811
) -> None:
    bringer.bring("out/<b>m", b"x" * 2048)
    bringer.bring("half", b"12", 0, b"1234")
    bringer.say(ArtifactPiece(LEFT_OUT, bringer.lease.uid, 1, "link", why="no_file"))
    bringer.say(ArtifactPiece(LEFT_OUT, bringer.lease.uid, 1, "", 7, why="more"))
    bringer.end()

    page = signed_in("bob").get(f"/jobs/{bringer.job.uid}/").content.decode()
    receipt = signed_in("bob").get(f"/leases/{bringer.lease.uid}/").content.decode()
    listed = signed_in("alice").get(f"/api/v1/jobs/{bringer.job.uid}/artifacts/").json()["results"]

    assert "out/&lt;b&gt;m" in page
    assert "On its way: 50 %." in page
    assert "a link, a pipe or a device" in page
    assert "7 more were left out." in page
    assert "2 files, 2.0 KiB" in receipt
    assert [(one["path"], one["can_download"]) for one in listed] == [
        ("", False), ("link", False), ("half", False), ("out/<b>m", True),
    ]  # fmt: skip
    charlie, pk = signed_in("charlie"), Artifact.objects.get(path="out/<b>m").pk
    for path in ("", f"{pk}/", f"{2**70}/"):
        assert charlie.get(f"/api/v1/jobs/{bringer.job.uid}/artifacts/{path}").status_code == 404
    assert charlie.get(f"/jobs/{bringer.job.uid}/artifacts/{pk}/").status_code == 404
    assert signed_in("bob").get(f"/jobs/{bringer.job.uid}/artifacts/{2**70}/").status_code == 404
