"""Two at the same moment: the later one sees what the earlier one did, instead of writing over it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import transaction
from django.test import Client

from portal.agents.admission import admit
from portal.agents.errors import AgentRefused
from portal.agents.services import revoke_node
from portal.common.clock import db_now
from portal.common.errors import Conflict, QuotaExceeded
from portal.common.sql import fetch
from portal.fleet.models import Node
from portal.leases.approvals import approve_request, reject_request
from portal.leases.models import LeaseRequest, RequestEvent
from portal.quotas import services as quotas
from portal.quotas.models import Cohort, Quota
from portal.teams.models import Team
from tests.agents.test_enrolment import NONCE, Key, token
from tests.portal.builders import World, build_world
from tests.portal.meanwhile import meanwhile

pytestmark = pytest.mark.django_db(transaction=True)


@transaction.atomic
def take(world: World, team: str, cost: int) -> None:
    quotas.reserve([(world.team(team), cost)])


def test_what_another_transaction_takes_of_a_quota_is_seen_before_it_is_counted() -> None:
    world = build_world()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            take(world, "robotics", 3_000)
            other = meanwhile(lambda: take(world, "robotics", 2_000), pool)
            assert not other.done()
        with pytest.raises(QuotaExceeded) as refused:
            other.result(timeout=60)

    assert refused.value.facts["headroom"] == 1_000
    assert Quota.objects.get(team__slug="robotics").used_milli == 3_000


def test_what_is_lent_is_not_taken_twice_by_a_team_that_joins_meanwhile() -> None:
    """robotics lends 1,000; vision wants it, waits, and finds that language has joined and borrowed it."""
    world = build_world()
    cohort = Cohort.objects.create(name="pool", created_at=world.now)
    bounds = {"robotics": 1_000, "vision": 0}
    for slug, guaranteed in bounds.items():
        Quota.objects.filter(team__slug=slug).update(guaranteed_milli=guaranteed, cohort=cohort)

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            fetch("SELECT 1 FROM quotas_quota WHERE team_id = %s FOR UPDATE", [world.team("robotics").pk])
            other = meanwhile(lambda: take(world, "vision", 1_000), pool)
            assert not other.done()
            # By its row alone: whoever joins by the book would wait for the rows that the other one holds.
            Quota.objects.filter(team__slug="language").update(
                guaranteed_milli=0, cohort=cohort, used_milli=1_000
            )
        with pytest.raises(QuotaExceeded):
            other.result(timeout=60)

    assert Quota.objects.get(team__slug="vision").used_milli == 0


def test_a_request_that_is_approved_meanwhile_cannot_be_rejected() -> None:
    world = build_world()
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=1)
    world.teams["perception"].refresh_from_db()
    request = world.submit()

    def reject() -> LeaseRequest:
        return reject_request(
            request=request, actor=world.user("alice"), rights=world.rights("alice"), note="no", now=world.now
        )

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            approver = world.user("approver")
            approve_request(
                request=request, actor=approver, rights=world.rights("approver"), note="", now=world.now
            )
            other = meanwhile(reject, pool)
            assert not other.done()
        with pytest.raises(Conflict, match="does not wait for approval"):
            other.result(timeout=60)

    request.refresh_from_db()
    assert (request.state, request.decided_by) == ("queued", approver)


@pytest.mark.parametrize("address", ["/api/v1/requests/{}/withdraw/", "/requests/{}/withdraw/"])
def test_what_waited_for_a_request_is_recorded_when_it_came_to_pass(address: str, client: Client) -> None:
    world = build_world()
    request = world.submit()
    client.force_login(world.user("bob"))
    told = {"content_type": "application/json"} if "api" in address else {}

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            LeaseRequest.objects.select_for_update().get(pk=request.pk)
            other = meanwhile(lambda: client.post(address.format(request.uid), **told), pool)
            assert not other.done()
            let_go_at = db_now()
        other.result(timeout=60)

    step = RequestEvent.objects.get(request=request, now="withdrawn")
    assert step.at > let_go_at


def test_a_hello_does_not_bring_back_a_key_that_is_revoked_meanwhile() -> None:
    world, key = build_world(), Key()
    admit(key.hello(token=token(world)), nonce=NONCE, now=world.now)
    node = Node.objects.get(name="gpu-09")

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            revoke_node(node=node, actor=world.user("operator"), now=world.now)
            other = meanwhile(lambda: admit(key.hello(), nonce=NONCE, now=world.now), pool)
            assert not other.done()
        with pytest.raises(AgentRefused):
            other.result(timeout=60)

    node.refresh_from_db()
    assert (node.public_key, node.epoch) == (None, 2)
