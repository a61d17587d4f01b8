from __future__ import annotations

import re

import pytest
from django.test import Client

from portal.leases.approvals import terms_of
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import RequestState
from portal.teams.models import Team
from tests.portal.builders import World
from tests.web.conftest import Publish, SignedIn

NEW, QUOTE = "/requests/new/", "/requests/quote/"
GOOD = {"team": "perception", "flavor": "h100-1g-10gb", "count": "1", "duration": "6 h", "name": "run 12"}


def send(client: Client, **change: str):
    return client.post(NEW, {**GOOD, **change})


def same_text(content: str) -> str:
    """A refusal without what differs between any two answers."""
    return re.sub(
        r"csrfmiddlewaretoken\" value=\"\w+|not_found · \w+|X-CSRFToken\": \"\w+|value=\"/[^\"]*\"",
        "",
        content,
    )


def test_the_form_offers_every_flavor_with_its_price(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    publish(world.now)

    text = signed_in("bob").get(NEW).text

    assert text.count('name="flavor"') == 4
    assert "56 free" in text
    assert "0.45" in text


def test_a_flavor_nobody_can_ever_get_is_greyed_with_its_reason(world: World, signed_in: SignedIn) -> None:
    Team.objects.get(slug="vision").quota.__class__.objects.filter(team__slug="vision").update(
        ceiling_milli=500, guaranteed_milli=0
    )

    text = signed_in("bob").get(NEW).text

    assert "above your team&#x27;s ceiling" in text
    assert 'value="h100" data-mode="exclusive" disabled' in text


def test_sending_the_form_makes_a_request_and_leads_to_it(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")

    answer = send(client, purpose="why not")

    made = LeaseRequest.objects.get()
    assert (answer.status_code, answer["Location"]) == (302, f"/requests/{made.uid}/")
    assert (made.duration_s, made.count, made.name, made.state) == (21_600, 1, "run 12", RequestState.QUEUED)
    assert "Number 1 in the queue" in client.get(answer["Location"]).text


def test_a_second_click_leads_to_the_first_request(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")

    first, second = send(client, ticket="t-1"), send(client, ticket="t-1")

    assert LeaseRequest.objects.count() == 1
    assert first["Location"] == second["Location"]


def test_a_refused_form_can_be_corrected_and_sent_with_the_same_ticket(
    world: World, signed_in: SignedIn
) -> None:
    client = signed_in("bob")

    refused = send(client, ticket="t-2", count="9")
    accepted = send(client, ticket="t-2", count="2")

    assert refused.status_code == 422
    assert accepted.status_code == 302


@pytest.mark.parametrize(
    "change",
    [
        {"count": "0"},
        {"count": "-3"},
        {"count": "9" * 40},
        {"count": "1.5"},
        {"count": "99"},
        {"duration": ""},
        {"duration": "soon"},
        {"duration": "9" * 39},
        {"duration": "99999 d"},
        {"duration": "0 s"},
        {"flavor": ""},
        {"flavor": "no-such"},
        {"flavor": "x" * 60},
        {"team": "language"},
        {"team": ""},
        {"name": "n" * 81},
        {"name": "a\x00b"},
        {"purpose": "p" * 301},
        {"priority": "high"},
        {"priority": "utmost"},
        {"instead_of": "r" * 30},
    ],
)
def test_bad_input_changes_nothing_and_loses_nothing(
    world: World, signed_in: SignedIn, change: dict[str, str]
) -> None:
    answer = send(signed_in("bob"), **{"purpose": "kept text", **change})

    assert answer.status_code == 422
    assert "Nothing was sent yet" in answer.text
    assert "kept text" in answer.text or "purpose" in change
    assert not LeaseRequest.objects.exists()


def test_a_request_above_every_quota_says_what_would_fit(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    Team.objects.get(slug="vision").quota.__class__.objects.filter(team__slug="vision").update(
        ceiling_milli=2000, guaranteed_milli=0
    )

    refused = send(client, flavor="h100", count="4")
    quoted = client.get(QUOTE, {**GOOD, "flavor": "h100", "count": "4"})

    assert refused.status_code == 422
    assert "its ceiling allows 2" in refused.text
    assert "Cannot start as asked" in quoted.text
    assert "2 instead of 4" in quoted.text


def test_the_quote_shows_price_start_and_room(world: World, signed_in: SignedIn, publish: Publish) -> None:
    publish(world.now)

    text = signed_in("bob").get(QUOTE, GOOD).text

    assert "2.70" in text
    assert "Right away" in text
    assert "8 → 7.875 reference GPUs" in text


def test_a_busy_cluster_is_answered_with_reasons_and_offers_that_fill_the_form(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    publish(world.now)

    text = signed_in("bob").get(QUOTE, GOOD).text

    assert "Why not now" in text
    assert "What you could have instead" in text
    assert 'data-value="l40s-quarter|1|6 h||"' in text


def test_without_a_picture_the_quote_has_a_price_and_an_unknown_start(
    world: World, signed_in: SignedIn
) -> None:
    text = signed_in("bob").get(QUOTE, GOOD).text

    assert "2.70" in text
    assert "unknown" in text
    assert "Right away" not in text


@pytest.mark.parametrize(
    "change", [{"duration": "soon"}, {"count": "x"}, {"flavor": "no-such"}, {"team": "speech"}]
)
def test_a_quote_for_nonsense_says_what_to_change(
    world: World, signed_in: SignedIn, change: dict[str, str]
) -> None:
    answer = signed_in("bob").get(QUOTE, {**GOOD, **change})

    assert answer.status_code == 422
    assert "<html" not in answer.text


def test_finance_may_not_ask_and_reads_why(signed_in: SignedIn) -> None:
    client = signed_in("finance")

    assert client.get(NEW).status_code == 403
    assert send(client).status_code == 403
    assert not LeaseRequest.objects.exists()


def test_charlie_meets_another_teams_request_like_a_missing_one(world: World, signed_in: SignedIn) -> None:
    request = world.submit("bob")
    charlie = signed_in("charlie")

    foreign = charlie.get(f"/requests/{request.uid}/")
    missing = charlie.get("/requests/req-0000000000000000/")

    assert foreign.status_code == missing.status_code == 404
    assert same_text(foreign.text) == same_text(missing.text)
    assert charlie.post(f"/requests/{request.uid}/withdraw/").status_code == 404
    assert charlie.post(f"/requests/{request.uid}/decide/", {"decision": "approve"}).status_code == 404
    assert request.uid not in charlie.get("/requests/").text


def test_a_waiting_request_says_why_and_offers_what_starts_sooner(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    world.active("charlie", "h100", count=8, duration_s=7200)
    request = world.submit("bob", "h100-3g-40gb", duration_s=3600)
    world.turn()
    publish(world.now)

    text = signed_in("bob").get(f"/requests/{request.uid}/").text

    assert "Why it waits" in text
    assert f'data-refresh-on="request:{request.uid}"' in text
    assert "What would start now" in text
    assert f"flavor=l40s-quarter&amp;count=1&amp;duration=1+h&amp;instead_of={request.uid}" in text
    assert "Withdraw" in text


def test_withdrawing_twice_is_harmless_and_after_the_grant_too_late(
    world: World, signed_in: SignedIn
) -> None:
    client = signed_in("bob")
    request = world.submit("bob")

    for _click in range(2):
        assert client.post(f"/requests/{request.uid}/withdraw/").status_code == 302
    request.refresh_from_db()
    assert request.state == RequestState.WITHDRAWN

    started = world.submit("bob")
    world.turn()
    answer = client.post(f"/requests/{started.uid}/withdraw/", follow=True)
    assert "release its lease instead" in answer.text


def test_a_granted_request_leads_to_its_lease(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    lease = world.active("bob")
    path = f"/requests/{lease.request.uid}/"

    assert client.get(path)["Location"] == f"/leases/{lease.uid}/"
    assert client.get(f"{path}?show=request").status_code == 200


def test_an_open_request_page_tells_of_its_lease_and_leads_on_once_it_is_active(
    world: World, signed_in: SignedIn
) -> None:
    client = signed_in("bob")
    request = world.submit("bob")
    path = f"/requests/{request.uid}/"

    def refreshed() -> str:
        return str(client.get(path, headers={"HX-Request": "true"}).text)

    waiting = refreshed()
    (lease,) = world.turn()
    preparing = refreshed()
    world.ready(lease)
    active = refreshed()

    assert "The lease is active" not in waiting
    assert f'href="/leases/{lease.uid}/"' in preparing
    assert "Almost there" in preparing
    assert "data-go-to=" not in waiting + preparing
    assert f'data-go-to="/leases/{lease.uid}/"' in active
    assert "The lease is active" in active


def test_an_offer_taken_replaces_the_request_that_waits(world: World, signed_in: SignedIn) -> None:
    client = signed_in("bob")
    old = world.submit("bob", "h100", count=8)

    assert send(client, instead_of=old.uid).status_code == 302

    old.refresh_from_db()
    assert old.state == RequestState.WITHDRAWN
    assert LeaseRequest.objects.filter(state=RequestState.QUEUED).count() == 1


def test_an_offer_cannot_withdraw_what_belongs_to_another_team(world: World, signed_in: SignedIn) -> None:
    theirs = world.submit("charlie")

    assert send(signed_in("bob"), instead_of=theirs.uid).status_code == 302

    theirs.refresh_from_db()
    assert theirs.state == RequestState.QUEUED


def test_large_requests_wait_for_somebody_else_to_decide(world: World, signed_in: SignedIn) -> None:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=60)
    bob, alice = signed_in("bob"), signed_in("alice")
    assert "After approval" in bob.get(QUOTE, GOOD).text
    send(bob)
    request = LeaseRequest.objects.get()
    path = f"/requests/{request.uid}/decide/"

    assert bob.get("/approvals/").status_code == 403
    assert "role does not allow" in bob.post(path, {"decision": "approve"}, follow=True).text
    assert request.uid in alice.get("/approvals/").text
    assert "Say why" in alice.post(path, {"decision": "reject", "note": ""}, follow=True).text
    assert alice.post(path, {"decision": "approve", "note": "fine"}).status_code == 302

    request.refresh_from_db()
    assert (request.state, request.decided_by) == (RequestState.QUEUED, world.user("alice"))
    assert "any more" in alice.post(path, {"decision": "approve"}, follow=True).text


def test_an_approver_lets_through_less_and_the_page_says_who_let_through_what(
    world: World, signed_in: SignedIn
) -> None:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=60)
    send(signed_in("bob"))
    request, alice = LeaseRequest.objects.get(), signed_in("alice")
    path = f"/requests/{request.uid}/decide/"
    shorter = {"decision": "approve", "note": "", "duration": "30 min", "terms": terms_of(request)}

    assert "something else by now" in alice.post(path, shorter | {"terms": "other"}, follow=True).text
    assert "Approve 1800 to" not in alice.post(path, shorter, follow=True).text

    request.refresh_from_db()
    assert (request.state, request.duration_s) == (RequestState.QUEUED, 1800)
    assert "30 min" in signed_in("bob").get(f"/requests/{request.uid}/").text


@pytest.mark.parametrize("fields", [{}, {"decision": "maybe"}, {"decision": "approve", "note": "n" * 301}])
def test_a_decision_that_makes_no_sense_changes_nothing(
    world: World, signed_in: SignedIn, fields: dict[str, str]
) -> None:
    Team.objects.filter(slug="perception").update(approval_above_gpu_seconds=60)
    world.teams["perception"].refresh_from_db()
    request = world.submit("bob")

    answer = signed_in("alice").post(f"/requests/{request.uid}/decide/", fields, follow=True)

    assert answer.status_code == 200
    request.refresh_from_db()
    assert request.state == RequestState.AWAITING_APPROVAL
    assert not Lease.objects.exists()


def test_sizes_are_a_table_that_says_when_each_is_free(
    world: World, signed_in: SignedIn, publish: Publish
) -> None:
    publish(world.now)

    page = signed_in("bob").get(NEW).text

    assert page.count('<tr class="flavor"') == 4
    assert 'data-memory="' in page
    assert "Memory at least" in page
    assert "Free at" in page


def test_the_form_opens_as_it_was_sent_last(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    assert "Filled in as you asked last time" not in bob.get(NEW).text
    send(bob, duration="3 h", name="run 7")

    form = bob.get(NEW)

    assert "Filled in as you asked last time" in form.text
    assert form.context["form"]["duration"].value() == "3 h"
    assert not form.context["form"]["name"].value()
    assert form.context["quote"].duration == "3 h"
    assert "Filled in as you asked last time" not in bob.get(NEW, {"count": "1"}).text
