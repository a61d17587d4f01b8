from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from portal.embedded import demo, fingerprint
from portal.embedded.errors import CannotStart
from portal.embedded.lock import FolderLock
from portal.embedded.ports import FIRST_EPHEMERAL, listen, wanted_port
from portal.embedded.restart import FIRST_DELAY_S, HEALTHY_AFTER_S, LONGEST_DELAY_S, Restarts
from portal.embedded.stack import secret_key_file, terminals_of

BOARD = SimpleNamespace(node="gpu-01", board="h100-80gb", count=8, modes=("mig", "exclusive"))


def test_the_second_one_on_a_folder_is_told_who_has_it(tmp_path: Path) -> None:
    first = FolderLock(tmp_path)
    first.describe("process 7, http://127.0.0.1:8000")

    with pytest.raises(CannotStart, match=r"already running .*process 7, http://127\.0\.0\.1:8000"):
        FolderLock(tmp_path)

    first.close()
    FolderLock(tmp_path).close()


def test_a_port_that_is_taken_is_answered_with_the_next_free_one() -> None:
    first = listen("127.0.0.1", 21_000)
    taken = first.getsockname()[1]

    second = listen("127.0.0.1", taken)

    assert taken < second.getsockname()[1] < FIRST_EPHEMERAL
    first.close()
    second.close()


def test_an_address_this_machine_does_not_have_is_refused_with_the_setting_to_change() -> None:
    with pytest.raises(CannotStart, match="BERTH_HOST"):
        listen("192.0.2.1", 21_000)


@pytest.mark.parametrize(
    ("host", "wanted", "served"),
    [
        ("127.0.0.1", None, "1"),
        ("::1", None, "1"),
        ("0.0.0.0", None, "0"),
        ("192.0.2.1", "", "0"),
        ("0.0.0.0", "1", "1"),
        ("127.0.0.1", "0", "0"),
    ],
)
def test_shells_are_for_this_machine_alone_unless_somebody_insists(
    host: str, wanted: str | None, served: str
) -> None:
    assert terminals_of(host, {} if wanted is None else {"BERTH_TERMINALS": wanted}) == served


@pytest.mark.parametrize("text", ["0", "-1", "http", "99999", str(FIRST_EPHEMERAL), "８０００", "8000 "])
def test_a_port_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(CannotStart, match="BERTH_PORT"):
        wanted_port(text)


def test_no_port_asked_for_means_8000() -> None:
    assert wanted_port(None) == wanted_port("") == 8000
    assert wanted_port("9001") == 9001


def test_a_child_that_keeps_dying_waits_longer_each_time_up_to_a_lid() -> None:
    restarts, delays = Restarts(), []
    for _ in range(9):
        restarts = restarts.after_death(lived_s=0.1)
        delays.append(restarts.delay_s)

    assert delays[:4] == [FIRST_DELAY_S, 2 * FIRST_DELAY_S, 4 * FIRST_DELAY_S, 8 * FIRST_DELAY_S]
    assert delays[-1] == LONGEST_DELAY_S
    assert delays == sorted(delays)


def test_a_child_that_was_healthy_for_a_while_starts_again_at_once() -> None:
    tired = Restarts(failures=8)

    assert tired.after_death(lived_s=HEALTHY_AFTER_S).delay_s == FIRST_DELAY_S


def test_the_secret_key_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret_key"

    first = secret_key_file(path).read_text()
    second = secret_key_file(path).read_text()

    assert first == second
    assert len(first) >= 50
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_changed_migration_changes_the_fingerprint_and_nothing_else_does(tmp_path: Path) -> None:
    app = tmp_path / "leases"
    (app / "migrations").mkdir(parents=True)
    (app / "migrations" / "0001_initial.py").write_text("one")
    before = fingerprint.of_migrations([app])

    (app / "models.py").write_text("not a migration")
    assert fingerprint.of_migrations([app]) == before

    (app / "migrations" / "0002_more.py").write_text("two")
    assert fingerprint.of_migrations([app]) != before


def test_the_real_gpus_join_the_demo_fleet_where_a_driver_is_loaded(tmp_path: Path) -> None:
    sign = tmp_path / "driver"

    without = demo.nodes([BOARD], [sign])
    sign.touch()
    with_driver = demo.nodes([BOARD], [sign])

    assert [(node.name, node.driver) for node in without] == [("gpu-01", "simulated")]
    assert [node.driver for node in with_driver] == ["simulated", "nvml"]


@pytest.mark.parametrize(
    ("hostname", "name"),
    [("Lab-7.example", "lab-7"), ("gpu-01", "gpu-01-gpu"), ("...", "local-gpu"), ("Ü_1", "1")],
)
def test_an_odd_host_name_still_gives_a_node_name_of_its_own(hostname: str, name: str) -> None:
    assert demo.node_name(hostname, {"gpu-01"}) == name


def test_a_node_that_is_enrolled_already_gets_no_token(tmp_path: Path) -> None:
    (node, *_), token = demo.nodes([BOARD], []), tmp_path / "gpu-01.token"

    assert "--enrol-token-file" not in node.arguments(8000, tmp_path, token)

    token.write_text("once")
    assert node.arguments(8000, tmp_path, token)[-2:] == ["--enrol-token-file", str(token)]


def test_a_listening_socket_outlives_the_one_who_answers() -> None:
    """The supervisor holds it, so visitors of a restarting web server wait instead of being refused."""
    held = listen("127.0.0.1", 21_100)

    with socket.create_connection(held.getsockname(), timeout=2) as visitor:
        assert visitor.getpeername() == held.getsockname()
    held.close()
