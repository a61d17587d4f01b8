"""The page of a lease's terminal, and its tickets: for the holder alone."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from portal.audit.models import AuditEntry
from portal.common.errors import Conflict
from portal.fleet.models import Node
from portal.gateway.models import StreamTicket, TerminalShare
from portal.gateway.tickets import SSH_APP, WATCH_APP, make_ticket, take_ticket
from portal.leases.models import Lease
from portal.leases.states import LeaseState
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
ORIGIN = "http://testserver"


@pytest.fixture
def lease(world: World, settings: Any) -> Lease:
    settings.GATEWAYS = [":8001", "/gateway", "wss://gw.example.org/berth"]
    Node.objects.update(features=["streams"])
    return world.active("bob")


def signed_in(world: World, name: str) -> Client:
    client = Client(headers={"origin": ORIGIN})
    client.force_login(world.user(name))
    return client


def test_holder_gets_the_page_with_every_gateway_in_it_and_in_its_policy(world: World, lease: Lease) -> None:
    answer = signed_in(world, "bob").get(f"/leases/{lease.uid}/terminal/")

    policy = answer.headers["Content-Security-Policy"]
    nonce = re.search(r"style-src 'self' 'nonce-([^']+)'", policy)
    assert nonce is not None
    assert f'data-style-nonce="{nonce[1]}"' in answer.content.decode()
    connect = re.search(r"connect-src ([^;]+)", policy)
    assert connect is not None
    assert connect[1] == "'self' ws://testserver ws://testserver:8001 wss://gw.example.org"
    assert json.loads(answer.context["gateways"]) == [
        "ws://testserver:8001/streams/v1/terminal",
        "ws://testserver/gateway/streams/v1/terminal",
        "wss://gw.example.org/berth/streams/v1/terminal",
    ]


def test_other_pages_keep_the_strict_policy(world: World, lease: Lease) -> None:
    policy = signed_in(world, "bob").get(f"/leases/{lease.uid}/").headers["Content-Security-Policy"]

    assert "nonce" not in policy
    assert "8001" not in policy


def test_ticket_is_for_the_session_lease_and_page_that_asked(world: World, lease: Lease) -> None:
    bob = signed_in(world, "bob")

    secret = bob.post(f"/leases/{lease.uid}/terminal/ticket/").json()["ticket"]

    taken = take_ticket(secret, now=world.now)
    assert taken is not None
    assert (taken.user_id, taken.lease_id, taken.generation) == (lease.user_id, lease.pk, lease.generation)
    assert (taken.session_key, taken.origin) == (bob.session.session_key, ORIGIN)
    assert secret.encode() not in bytes(StreamTicket.objects.get().digest)


def test_a_refused_ticket_says_how_the_lease_stands(world: World, lease: Lease) -> None:
    said = {}
    for state in (LeaseState.PREPARING, LeaseState.INTERRUPTED, LeaseState.ENDED):
        lease.state = state
        for app in ("", SSH_APP):
            with pytest.raises(Conflict) as refusal:
                make_ticket(lease, lease.user, app=app, now=world.now)
            said[state, app] = str(refusal.value.detail).split(".")[0]

    for app in ("", SSH_APP):
        assert said[LeaseState.PREPARING, app] == "The lease is not active yet"
        assert said[LeaseState.INTERRUPTED, app] == "The node of this lease is silent"
        assert said[LeaseState.ENDED, app].startswith("The lease is over")


def test_the_holder_lets_a_member_of_the_team_watch_and_takes_it_back(world: World, lease: Lease) -> None:
    bob, alice = signed_in(world, "bob"), signed_in(world, "alice")
    address = f"/leases/{lease.uid}/"

    before = alice.post(f"{address}watch/ticket/")
    bob.post(f"{address}terminal/share/", {"user": "alice"})
    share = TerminalShare.objects.get()
    page, watch = alice.get(address).text, alice.get(f"{address}watch/")
    secret = alice.post(f"{address}watch/ticket/").json()["ticket"]

    assert (before.status_code, watch.status_code) == (403, 200)
    assert "Watch the terminal of" in page
    assert "/streams/v1/watch" in watch.text
    assert "lets you watch" in alice.get("/notifications/").text
    assert (taken := take_ticket(secret, now=world.now)) is not None
    assert taken.app == WATCH_APP
    assert alice.post(f"{address}terminal/ticket/").status_code == 403  # watching opens no shell
    bob.post(f"{address}terminal/share/{share.pk}/end/")
    assert alice.post(f"{address}watch/ticket/").status_code == 403
    said = AuditEntry.objects.filter(target=lease.uid, action__startswith="terminal.").order_by("id")
    assert list(said.values_list("action", flat=True)) == ["terminal.shared", "terminal.unshared"]


def test_nobody_else_shares_and_nobody_outside_the_team_is_chosen(world: World, lease: Lease) -> None:
    share = f"/leases/{lease.uid}/terminal/share/"

    signed_in(world, "alice").post(share, {"user": "alice"})
    signed_in(world, "bob").post(share, {"user": "charlie"})
    signed_in(world, "bob").post(share, {"user": "bob"})

    assert signed_in(world, "charlie").post(share, {"user": "*"}).status_code == 404
    assert not TerminalShare.objects.exists()
    for _twice in range(2):
        signed_in(world, "bob").post(share, {"user": "*"})
    assert TerminalShare.objects.get().user is None
    with pytest.raises(IntegrityError), transaction.atomic():
        TerminalShare.objects.create(lease=lease, user=None, created_at=world.now)


def test_lease_of_another_team_looks_like_none(world: World, lease: Lease) -> None:
    charlie = signed_in(world, "charlie")

    page = charlie.get(f"/leases/{lease.uid}/terminal/")
    ticket = charlie.post(f"/leases/{lease.uid}/terminal/ticket/")
    missing = charlie.post("/leases/lse-0000000000000000/terminal/ticket/")

    assert (page.status_code, ticket.status_code) == (404, 404)
    assert ticket.json() == missing.json()


def test_admin_of_the_team_sees_the_lease_and_opens_no_terminal_in_it(world: World, lease: Lease) -> None:
    alice = signed_in(world, "alice")

    shown = alice.get(f"/leases/{lease.uid}/")
    page = alice.get(f"/leases/{lease.uid}/terminal/")
    ticket = alice.post(f"/leases/{lease.uid}/terminal/ticket/")

    assert "/terminal/" not in shown.content.decode()
    assert page.headers["Location"] == f"/leases/{lease.uid}/"
    assert (ticket.status_code, ticket.json()["code"]) == (403, "forbidden")


@pytest.mark.parametrize("missing", ["active", "gateways", "feature"])
def test_button_is_there_only_where_a_terminal_would_open(
    world: World, lease: Lease, settings: Any, missing: str
) -> None:
    bob = signed_in(world, "bob")
    before = bob.get(f"/leases/{lease.uid}/").content.decode()
    if missing == "active":
        Lease.objects.filter(pk=lease.pk).update(state=LeaseState.ENDING)
    elif missing == "gateways":
        settings.GATEWAYS = []
    else:
        Node.objects.update(features=["host_limits"])

    after = bob.get(f"/leases/{lease.uid}/").content.decode()

    assert f"/leases/{lease.uid}/terminal/" in before
    assert f"/leases/{lease.uid}/terminal/" not in after
    assert bob.post(f"/leases/{lease.uid}/terminal/ticket/").status_code == 409


def test_whoever_is_not_signed_in_gets_no_ticket(lease: Lease) -> None:
    assert Client().post(f"/leases/{lease.uid}/terminal/ticket/").status_code == 302
