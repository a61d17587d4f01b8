from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from portal.common.rows import NewRow, Rows
from portal.common.sql import fetch
from portal.leases.models import Lease, LeaseRequest, Placement
from tests.portal.builders import World

LEASES = Rows(Lease, "team", "user", "flavor", "flavor.device_model", "node", "request")


def fields_of(one: object) -> dict[str, object]:
    return {f.attname: getattr(one, f.attname) for f in one._meta.concrete_fields}  # type: ignore[attr-defined]


def test_an_object_and_its_relations_equal_those_of_a_queryset(world: World) -> None:
    lease = world.active("bob", "h100")
    wanted = Lease.objects.select_related(
        "team", "user", "flavor", "flavor__device_model", "node", "request"
    ).get(pk=lease.pk)

    found = LEASES.first("it.uid = %s", [lease.uid])

    assert found is not None
    with CaptureQueriesContext(
        connection,
    ) as asked:
        for one, other in (
            (found, wanted),
            (found.team, wanted.team),
            (found.user, wanted.user),
            (found.flavor, wanted.flavor),
            (found.flavor.device_model, wanted.flavor.device_model),
            (found.node, wanted.node),
            (found.request, wanted.request),
        ):
            assert fields_of(one) == fields_of(other)
    assert len(asked) == 0


def test_json_and_ranges_come_as_their_fields_give_them(world: World) -> None:
    world.active("bob", "h100")
    wanted = Placement.objects.get()

    (found,) = Rows(Placement, "device").where('it.is_live ORDER BY "device".index', [])

    assert fields_of(found) == fields_of(wanted)
    assert found.access == {"env": {"CUDA_VISIBLE_DEVICES": found.partition_uuid}, "nodes": []}


def test_a_relation_that_is_not_set_is_none(world: World) -> None:
    request = world.submit()

    found = Rows(LeaseRequest, "decided_by").first("it.id = %s", [request.pk])

    assert found is not None
    assert found.decided_by is None


def test_an_object_read_this_way_can_be_saved_and_deleted_like_any_other(world: World) -> None:
    lease = world.active("bob", "h100")
    found = LEASES.first("it.uid = %s", [lease.uid])
    assert found is not None

    found.fault = "noted"
    found.save(update_fields=["fault"])

    assert Lease.objects.get(pk=lease.pk).fault == "noted"


def test_nothing_found_is_none_and_values_are_never_sql(world: World) -> None:
    world.active("bob", "h100")

    assert LEASES.first("it.uid = %s", ["' OR true --"]) is None


def test_a_new_row_keeps_every_value_and_default_of_its_object(world: World) -> None:
    old = world.submit()
    made = LeaseRequest(
        **{name: value for name, value in fields_of(old).items() if name not in ("id", "uid")}
        | {"reasons": [{"code": "behind"}], "name": "a 'name'"}
    )
    insert = NewRow(LeaseRequest)

    ((made.pk,),) = fetch(insert.sql, insert.values(made))

    assert fields_of(LeaseRequest.objects.get(pk=made.pk)) == fields_of(made)
