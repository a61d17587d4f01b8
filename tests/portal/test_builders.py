from __future__ import annotations

from datetime import UTC, datetime

import pytest
from django.db import connection

from portal.accounts.models import Tries
from portal.leases.models import Placement
from portal.leases.states import LeaseState
from portal.teams.models import Team
from tests.emptying import empty
from tests.portal.builders import World, _build, build_world, make_user
from tests.portal.kept import NOT_OURS

# Columns that hold numbers of other rows, or the wall clock.
LOOSE = {"lineage", "date_joined"}
MARCH = datetime(2026, 3, 10, 9, tzinfo=UTC)


def installed() -> dict[str, list[tuple[str, ...]]]:
    """Every row of every table, less the numbers and the instants at which it happened to be written."""
    found = {}
    with connection.cursor() as cursor:
        for table in sorted(set(connection.introspection.table_names()) - NOT_OURS):
            links = connection.introspection.get_relations(cursor, table)
            cursor.execute(f'SELECT * FROM "{table}" ORDER BY 1')
            names = [column.name for column in cursor.description]
            kept = [n for n, name in enumerate(names) if n and name not in links and name not in LOOSE]
            rows = [tuple(repr(row[n]) for n in kept) for row in cursor.fetchall()]
            found[table] = sorted(rows)
    return found


@pytest.mark.django_db
def test_a_world_that_is_put_back_has_the_rows_of_one_that_is_built() -> None:
    # Tries at doors are counted by connections of their own, which no rollback of another test takes back.
    Tries.objects.all().delete()
    back = build_world(MARCH)
    put = installed()
    with connection.cursor() as cursor:
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    empty(put)
    built = _build(MARCH)

    assert put == installed()
    assert len(put["fleet_device"]) == 12
    assert (back.now, back.nodes["gpu-01"].last_seen_at) == (built.now, built.nodes["gpu-01"].last_seen_at)
    assert back.nodes["gpu-01"].last_seen_at == MARCH


@pytest.mark.django_db
def test_nothing_but_what_is_named_lies_in_the_tables_before_a_world() -> None:
    Tries.objects.all().delete()
    found = [table for table, rows in installed().items() if rows]

    assert not found, (
        f"migrations write {found}: name them in NOT_OURS, or no world is kept and all are built"
    )


def test_the_objects_of_a_world_are_its_rows(world: World) -> None:
    for things in (world.teams, world.people, world.nodes, world.flavors):
        for thing in things.values():
            kept = type(thing).objects.get(pk=thing.pk)
            assert {f.attname: getattr(kept, f.attname) for f in kept._meta.concrete_fields} == {
                f.attname: getattr(thing, f.attname) for f in kept._meta.concrete_fields
            }


def test_numbers_of_teams_people_and_nodes_are_never_the_same(world: World) -> None:
    groups = [{row.pk for row in rows.values()} for rows in (world.teams, world.people, world.nodes)]

    assert sum(map(len, groups)) == len(set.union(*groups))


@pytest.mark.django_db
def test_a_world_beside_rows_of_the_test_is_built_around_them() -> None:
    make_user("visitor")

    world = build_world(MARCH)

    assert Team.objects.count() == len(world.teams)


def test_a_lease_goes_from_request_to_clean_through_the_builders(world: World) -> None:
    lease = world.ended(seconds=600)

    assert lease.state == LeaseState.ENDED
    assert (lease.ended_at - lease.activated_at).total_seconds() == 600
    assert not Placement.objects.filter(is_live=True).exists()


def test_bob_sees_his_lease_and_charlie_does_not(world: World) -> None:
    from portal.leases.selectors import visible_leases

    lease = world.active()

    assert lease in visible_leases(world.rights("bob"))
    assert lease in visible_leases(world.rights("alice"))
    assert not visible_leases(world.rights("charlie")).exists()


def test_a_share_starts_on_the_l40s_node(world: World) -> None:
    lease = world.active("charlie", "l40s-quarter")

    assert lease.node == world.nodes["gpu-03"]
    assert lease.share_milli == 250
