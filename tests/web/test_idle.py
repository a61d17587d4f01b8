from __future__ import annotations

from datetime import timedelta

from portal.idle.models import IdleRule
from portal.idle.sweeping import sweep_idle
from portal.leases.models import Lease
from tests.portal.builders import World
from tests.portal.test_idle import measure, rule, running
from tests.web.conftest import SignedIn

PAGE = "/idle/"
RULE = {
    "team": "perception", "flavor": "", "then": "reclaim", "after_min": "30", "grace_min": "20", "snoozes": "1",
    "snooze_min": "60",
}  # fmt: skip


def test_operators_set_and_remove_rules_and_others_do_not(world: World, signed_in: SignedIn) -> None:
    operator, alice = signed_in("operator"), signed_in("alice")

    assert alice.post(PAGE, RULE).status_code == 403
    assert operator.post(PAGE, RULE | {"after_min": "1"}).status_code == 422
    assert operator.post(PAGE, RULE).status_code == 302

    made = IdleRule.objects.get()
    assert (made.team, made.then, made.after_min) == (world.team("perception"), "reclaim", 30)
    assert "after 30 minutes without work" in operator.get(PAGE).text
    assert "after 30 minutes" not in alice.get(PAGE).text
    assert alice.post(f"{PAGE}rules/{made.pk}/remove/").status_code == 403
    assert operator.post(f"{PAGE}rules/{made.pk}/remove/").status_code == 302
    assert not IdleRule.objects.exists()


def test_the_holder_sees_why_it_idles_and_puts_it_off(world: World, signed_in: SignedIn) -> None:
    bob, charlie = signed_in("bob"), signed_in("charlie")
    lease = running(world)
    measure(lease, until=world.now)
    rule(world)
    sweep_idle(now=world.now)
    own = f"/leases/{lease.uid}/"

    text = bob.get(own).text
    assert "This lease idles" in text
    assert "Nothing computed in the last 30 minutes." in text
    assert "This lease is taken back" in text
    assert "Put it off by 60 minutes" in text
    assert lease.uid in bob.get(PAGE).text
    assert lease.uid not in charlie.get(PAGE).text
    assert lease.uid in bob.get("/teams/perception/").text
    assert charlie.post(f"{own}idle/snooze/", {"reason": "mine"}).status_code == 404
    bob.post(f"{own}idle/snooze/", {"reason": ""})
    assert Lease.objects.get(pk=lease.pk).preempt_at is not None
    bob.post(f"{own}idle/snooze/", {"reason": "a long download"})

    assert Lease.objects.get(pk=lease.pk).preempt_at is None
    text = bob.get(own).text
    assert "Put off until" in text
    assert "Put it off by" not in text


def test_notifications_say_what_comes(world: World, signed_in: SignedIn) -> None:
    bob = signed_in("bob")
    lease = running(world)
    measure(lease, until=world.now)
    rule(world)
    sweep_idle(now=world.now)
    measure(lease, until=world.now + timedelta(minutes=5), minutes=5, util=90.0)
    sweep_idle(now=world.now + timedelta(minutes=5))

    text = bob.get("/notifications/").text

    assert "unless it is used or you put that off" in text
    assert "A lease of yours may stay" in text
