"""The output of jobs in the store: each byte once, whatever comes twice, late or not at all."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.core.files.storage import storages
from django.test import Client

from nodeagent.protocol.codec import ProtocolError
from nodeagent.protocol.jobs import LOG, MOST_PIECE, TELL, OutputPiece, pack, unpack
from portal.jobs.log_views import log_page, whole_characters
from portal.jobs.logs import OBJECT, forget_logs, read_log, store_piece
from portal.jobs.models import JobAttempt, LogObject, LogPiece
from tests.agents.test_reports import Desk
from tests.jobs.test_jobs import JobReport, desk, hand_in, says, started  # noqa: F401
from tests.portal.builders import World

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, settings: Any) -> Path:
    settings.STORAGES = {
        **settings.STORAGES,
        "jobs": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": str(tmp_path)},
        },
    }
    return tmp_path


class Printer:
    """A node that brings the output of one attempt."""

    def __init__(self, world: World, desk: Desk) -> None:  # noqa: F811
        self.now = world.now
        self.job, self.lease = started(world, desk)

    def bring(self, offset: int, data: bytes, *, is_last: bool = False) -> tuple[int, bool]:
        piece = OutputPiece(LOG, self.lease.uid, self.lease.generation, offset, is_last)
        stored = store_piece(self.lease.node_id, piece, data, now=self.now)
        return stored.offset, stored.is_done

    @property
    def attempt(self) -> JobAttempt:
        return JobAttempt.objects.get()

    def shown(self) -> bytes:
        found, offset = b"", 0
        while True:
            offset, data = read_log(self.attempt, offset)
            if not data:
                return found
            found, offset = found + data, offset + len(data)


@pytest.fixture
def printer(world: World, desk: Desk) -> Printer:  # noqa: F811
    return Printer(world, desk)


def test_piece_that_comes_twice_or_overlaps_is_stored_once(printer: Printer) -> None:
    assert printer.bring(0, b"one\n") == (4, False)
    assert printer.bring(0, b"one\n") == (4, False)
    assert printer.bring(2, b"e\ntwo\n") == (8, False)

    assert printer.shown() == b"one\ntwo\n"
    assert printer.attempt.log_lines == 2


def test_a_reader_gets_all_lines_that_came_since_it_asked_last(printer: Printer) -> None:
    for n, line in enumerate((b"one\n", b"two\n", b"six\n")):
        printer.bring(4 * n, line)
    printer.bring(1004, b"end\n")

    assert read_log(printer.attempt, 2) == (2, b"e\ntwo\nsix\n")
    assert read_log(printer.attempt, 12) == (1004, b"end\n")
    assert read_log(printer.attempt, 0, 6) == (0, b"one\ntw")


def test_agent_that_starts_anew_is_told_where_to_go_on(printer: Printer) -> None:
    printer.bring(0, b"one\n")
    piece = OutputPiece(TELL, printer.lease.uid, printer.lease.generation)

    assert store_piece(printer.lease.node_id, piece, b"", now=printer.now).offset == 4


def test_much_output_lies_in_objects_and_little_in_one_at_its_end(printer: Printer, folder: Path) -> None:
    line = b"x" * 63 + b"\n"
    for n in range(40):
        printer.bring(n * MOST_PIECE, line * (MOST_PIECE // 64))
    assert LogObject.objects.count() == 2
    assert LogPiece.objects.count() == 40 - 2 * OBJECT // MOST_PIECE

    assert printer.bring(40 * MOST_PIECE, b"end\n", is_last=True) == (40 * MOST_PIECE + 4, True)

    assert LogPiece.objects.count() == 0
    assert printer.shown() == line * (40 * MOST_PIECE // 64) + b"end\n"
    assert sum(file.stat().st_size for file in folder.rglob("*.z")) < OBJECT // 10
    assert list(LogObject.objects.values_list("first_line", flat=True)) == [0, 16384, 32768]


def test_output_of_nobody_is_not_wanted_and_that_of_a_job_to_come_is_waited_for(
    world: World,
    desk: Desk,  # noqa: F811
    printer: Printer,
) -> None:
    other = world.nodes["gpu-03"].pk
    piece = OutputPiece(LOG, printer.lease.uid, printer.lease.generation, 0)
    (job,) = hand_in(world)
    world.turn()
    coming = OutputPiece(LOG, job.request.__class__.objects.get(pk=job.request_id).leases.get().uid, 1, 0)

    assert store_piece(other, piece, b"forged", now=world.now).is_done
    assert store_piece(printer.lease.node_id, OutputPiece(LOG, "lse-x", 1, 0), b"x", now=world.now).is_done
    assert not store_piece(printer.lease.node_id, coming, b"early", now=world.now).is_done
    assert printer.shown() == b""
    assert LogPiece.objects.count() == 0


def test_what_the_node_left_out_is_said_in_its_place(printer: Printer) -> None:
    printer.bring(0, b"one\n")
    printer.bring(1004, b"two\n", is_last=True)

    page = log_page(printer.job, None, 0)
    assert page["text"] == "one\n\n… 1000 bytes left out\ntwo\n"
    assert (page["next"], page["is_done"]) == (1008, True)


@pytest.mark.deep
def test_of_long_output_the_first_tenth_and_the_last_nine_stay(printer: Printer, settings: Any) -> None:
    settings.JOB_LOG_MIB = 10
    for n in range(20 * 16):
        printer.bring(n * MOST_PIECE, bytes([65 + n // 16 % 26]) * MOST_PIECE)

    shown = printer.shown()
    assert shown[:OBJECT] == b"A" * OBJECT
    assert b"C" not in shown
    assert shown.endswith(bytes([65 + 19]) * OBJECT)
    assert len(shown) <= 11 * OBJECT


def test_output_is_forgotten_in_the_end(printer: Printer, desk: Desk, folder: Path) -> None:  # noqa: F811
    printer.bring(0, b"one\n", is_last=True)
    says(desk, printer.lease, "gone", JobReport("exited", exit=0, ran_ms=1))
    assert forget_logs(now=printer.now + timedelta(days=29)) == 0

    assert forget_logs(now=printer.now + timedelta(days=31)) == 1
    assert not list(folder.rglob("*.z"))


def test_try_that_died_before_its_commit_is_written_over(printer: Printer) -> None:
    storage = storages["jobs"]
    name = f"logs/{printer.job.pk}/{printer.attempt.pk}-0.z"
    storage.save(name, ContentFile(b"half of it"))

    printer.bring(0, b"one\n", is_last=True)

    assert printer.shown() == b"one\n"


@pytest.mark.parametrize(
    ("data", "kept"),
    [
        ("aé".encode()[:-1], b"a"),
        ("a€".encode()[:-1], b"a"),
        ("aé".encode(), "aé".encode()),
        (b"a", b"a"),
        (b"", b""),
    ],
)
def test_character_that_is_cut_waits_for_its_rest(data: bytes, kept: bytes) -> None:
    assert whole_characters(data) == kept


def test_frame_that_unfolds_to_more_than_a_piece_is_refused() -> None:
    piece = OutputPiece(LOG, "lse-1", 1, 0)

    assert unpack(pack(piece, b"x" * MOST_PIECE)) == (piece, b"x" * MOST_PIECE)
    for frame in (pack(piece, b"x" * (MOST_PIECE + 1)), b"", b"\xff\xff", pack(piece) + b"no zlib"):
        with pytest.raises(ProtocolError):
            unpack(frame)


def test_raw_log_is_a_file_that_no_browser_shows_and_charlies_it_is_not(
    printer: Printer, world: World
) -> None:
    printer.bring(0, b"<script>alert(1)</script>\xff\n", is_last=True)
    client = Client(headers={"Authorization": f"Bearer {world.token('bob')}"})
    foreign = Client(headers={"Authorization": f"Bearer {world.token('charlie')}"})

    answer = client.get(f"/api/v1/jobs/{printer.job.uid}/log/raw/")
    text = client.get(f"/api/v1/jobs/{printer.job.uid}/log/").json()["text"]

    assert answer["Content-Type"] == "text/plain; charset=utf-8"
    assert answer["X-Content-Type-Options"] == "nosniff"
    assert answer["Content-Disposition"].startswith("attachment")
    assert b"".join(answer.streaming_content) == b"<script>alert(1)</script>\xff\n"
    assert text.endswith("\ufffd\n")
    for path in ("log/", "log/raw/"):
        assert foreign.get(f"/api/v1/jobs/{printer.job.uid}/{path}").status_code == 404
