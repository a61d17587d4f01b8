from __future__ import annotations

import os

import pytest

from nodeagent.reconcile.journal import Journal, JournalError

HEAD = {"op": "head", "format": 1, "boot_id": "b", "driver": "d"}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def test_records_come_back_in_order(path):
    Journal(path).append([HEAD, {"op": "seen", "epoch": 1, "revision": 2}], sync=True)

    assert Journal(path).read() == [HEAD, {"op": "seen", "epoch": 1, "revision": 2}]


@pytest.mark.parametrize("torn", [b'{"op":"wo', b'{"op":"work"}', b"\x00\x00\x00", b'{"x":1}\n'])
def test_torn_last_line_is_left_out_and_writing_goes_on(path, torn):
    Journal(path).append([HEAD], sync=False)
    with path.open("ab") as out:
        out.write(torn)

    journal = Journal(path)
    assert journal.read() == [HEAD]
    journal.append([{"op": "seen", "epoch": 1, "revision": 1}], sync=True)

    assert len(Journal(path).read()) == 2


def test_unreadable_end_of_several_lines_is_kept_aside(path):
    Journal(path).append([HEAD], sync=False)
    with path.open("ab") as out:
        out.write(b'garbage\n{"op":"work"}\n')

    assert Journal(path).read() == [HEAD]
    assert path.with_suffix(".damaged").exists()


def test_failed_write_leaves_the_file_as_it_was(path, monkeypatch):
    journal = Journal(path)
    journal.append([HEAD], sync=True)
    before = path.read_bytes()

    def half(fd, data):
        os.write(fd, data[:5])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nodeagent.reconcile.journal._write_all", half)
    with pytest.raises(OSError, match="No space"):
        journal.append([{"op": "seen"}], sync=True)

    assert path.read_bytes() == before


def test_nothing_is_written_behind_a_torn_line_that_could_not_be_taken_back(path, monkeypatch):
    def refuse(*words: object) -> None:
        raise OSError(5, "Input/output error")

    def half(fd, data):
        os.write(fd, data[:5])
        refuse()

    journal, seen = Journal(path), {"op": "seen", "epoch": 1, "revision": 1}
    journal.append([HEAD], sync=True)
    with monkeypatch.context() as broken:
        broken.setattr("nodeagent.reconcile.journal._write_all", half)
        broken.setattr("os.ftruncate", refuse)
        with pytest.raises(OSError, match="Input/output"):
            journal.append([{"op": "lost"}], sync=True)
    with monkeypatch.context() as broken:
        broken.setattr("os.ftruncate", refuse)
        with pytest.raises(OSError, match="Input/output"):
            journal.append([{"op": "lost"}], sync=True)

    journal.append([seen], sync=True)

    assert Journal(path).read() == [HEAD, seen]


def test_lines_after_a_compacting_whose_folder_could_not_be_synced_are_read(path, monkeypatch):
    def refuse(*words: object) -> None:
        raise OSError(28, "No space left on device")

    journal, seen = Journal(path), {"op": "seen", "epoch": 1, "revision": 1}
    journal.append([HEAD] * 9, sync=True)
    with monkeypatch.context() as broken:
        broken.setattr("nodeagent.reconcile.journal._sync_folder", refuse)
        with pytest.raises(OSError, match="No space"):
            journal.compact([HEAD])
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", refuse)
        with pytest.raises(OSError, match="No space"):
            journal.append([{"op": "lost"}], sync=True)

    journal.append([seen], sync=True)

    assert Journal(path).read() == [HEAD, seen]


def test_one_batch_costs_one_sync(path, monkeypatch):
    syncs = []
    monkeypatch.setattr("os.fdatasync", syncs.append)

    Journal(path).append([{"op": "work", "n": n} for n in range(16)], sync=True)

    assert len(syncs) == 1


def test_compacting_replaces_everything(path):
    journal = Journal(path)
    journal.append([{"op": "seen", "n": n} for n in range(100)], sync=False)

    journal.compact([HEAD])
    journal.append([{"op": "seen", "n": 1}], sync=False)

    assert Journal(path).read() == [HEAD, {"op": "seen", "n": 1}]


def test_journal_of_another_format_is_refused_with_advice(path):
    path.write_text('{"op":"head","format":99}\n')

    with pytest.raises(JournalError, match="empty state folder"):
        Journal(path).read()
