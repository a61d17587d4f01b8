from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tests import engines


def item(
    *, marked: bool = False, fixtures: tuple[str, ...] = (), databases: set[str] | None = None
) -> SimpleNamespace:
    return SimpleNamespace(
        get_closest_marker=lambda name: name if marked and name == "django_db" else None,
        fixturenames=fixtures,
        cls=None if databases is None else SimpleNamespace(databases=databases),
    )


@pytest.mark.parametrize(
    "needs", [item(marked=True), item(fixtures=("tmp_path", "db")), item(databases={"default"})]
)
def test_a_test_that_uses_the_database_brings_the_servers_up(needs: SimpleNamespace) -> None:
    assert engines._needs_servers(needs)


@pytest.mark.parametrize("plain", [item(), item(fixtures=("tmp_path", "client")), item(databases=set())])
def test_a_test_of_the_engine_or_the_agent_runs_without_servers(plain: SimpleNamespace) -> None:
    assert not engines._needs_servers(plain)


def test_tests_never_meet_the_data_of_a_running_stack() -> None:
    assert not os.environ["BERTH_DATA"].startswith(str(engines.Path(__file__).parents[2]))


def test_the_servers_of_the_tests_do_not_wait_for_the_disk_and_those_of_people_do() -> None:
    careless = engines.postgres.CARELESS

    assert {careless[name] for name in ("fsync", "synchronous_commit", "full_page_writes")} == {"off"}
    assert {
        engines.postgres.SETTINGS[name] for name in careless if name in ("fsync", "synchronous_commit")
    } == {"on"}


def test_a_test_may_speak_to_the_broker(valkey_url: str) -> None:
    import redis

    assert redis.Redis.from_url(valkey_url).ping()
