"""How the files that jobs leave get to a gateway: what it would refuse is not sent, and nothing holds up the rest."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from nodeagent.jobs.folder import FoundFile, JobFolder
from nodeagent.jobs.shipping import ArtifactLink
from nodeagent.protocol.jobs import ALL_SENT, LEFT_OUT, ArtifactPiece, Stored, stored_text, unpack

JOBS = SimpleNamespace(is_over=lambda _key: True)
DONE = {"done": True, "unnamed": 0}


def left(root: Path, name: str, *lines: dict[str, object], files: bytes = b"") -> JobFolder:
    """Return the folder of a job that left this."""
    folder = JobFolder(root, (name, 1))
    folder.make(10, 10, collects=True).close()
    (folder.path / "status").write_text('{"runner": 9}\n{"child": 10}\n')
    (folder.path / "found").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder.path / "files").write_bytes(files)
    return folder


class Gateway:
    """The other end of a socket. A frame that it cannot read, or a piece of the job ``refuses``, ends it."""

    def __init__(self, stored: dict[str, int], refuses: str = "") -> None:
        self.stored, self.refuses = stored, refuses
        self.sent: list[tuple[ArtifactPiece, int]] = []
        self._answer = ""

    async def send(self, frame: bytes) -> None:
        piece, data = unpack(frame)
        assert isinstance(piece, ArtifactPiece)
        if piece.lease == self.refuses:
            raise EOFError
        self.sent.append((piece, len(data)))
        stored = self.stored[piece.path] = max(self.stored.get(piece.path, 0), piece.offset + len(data))
        is_done = piece.op in (LEFT_OUT, ALL_SENT) or stored == piece.size
        self._answer = stored_text(Stored(piece.lease, piece.generation, stored, is_done=is_done))

    async def recv(self) -> str:
        return self._answer


@pytest.mark.parametrize(
    "line",
    [
        {"path": "x" * 297 + "/..", "left_out": "bad_name"}, {"path": "/etc/passwd"}, {"path": "x" * 301},
        {"path": "a", "left_out": "no name"}, {"path": "a", "sha256": "a" * 65}, {"path": "a", "size": -1},
    ],
)  # fmt: skip
async def test_what_a_gateway_would_refuse_is_counted_and_the_rest_is_sent(tmp_path, line):
    folder = left(tmp_path, "a", line, {"path": "kept", "size": 2}, DONE, files=b"ok")
    gateway = Gateway({})

    await ArtifactLink(gateway, tmp_path, JOBS, {}).run()

    assert [(piece.path, piece.why, piece.size) for piece, _ in gateway.sent] == [
        ("kept", "", 2), ("", "more", 1), ("", "", 0),
    ]  # fmt: skip
    assert not folder.collects


async def test_job_whose_files_are_refused_each_time_holds_up_no_other(tmp_path):
    for name in ("a", "b"):
        left(tmp_path, name, {"path": "kept", "size": 2}, DONE, files=b"ok")
    begun: dict[tuple[str, int], int] = {}
    for _socket in range(2):
        with pytest.raises(EOFError):
            await ArtifactLink(Gateway({}, refuses="a"), tmp_path, JOBS, begun).run()

    assert JobFolder(tmp_path, ("a", 1)).collects
    assert not JobFolder(tmp_path, ("b", 1)).collects


async def test_files_that_are_stored_are_not_sent_again_by_the_next_socket(tmp_path):
    lines = [{"path": name, "size": 2, "at": at} for at, name in enumerate(("one", "two"))]
    left(tmp_path, "a", *lines, DONE, files=b"yes")
    gateway = Gateway({"one": 2})

    await ArtifactLink(gateway, tmp_path, JOBS, {("a", 1): 1}).run()

    assert [(piece.path, sent) for piece, sent in gateway.sent] == [
        ("one", 0), ("two", 0), ("two", 2), ("", 0),
    ]  # fmt: skip


def test_collection_that_was_cut_off_says_so(tmp_path):
    folder = left(tmp_path, "a", {"path": "kept", "size": 2}, files=b"ok")

    assert folder.found()[0][1:] == [FoundFile(".", left_out="too_much_to_look_at")]
    (folder.path / "status").write_text('{"runner": 9}\n{"exit": 127, "why": "command"}\n')
    assert len(folder.found()[0]) == 1  # nothing was begun: there was nothing to collect
