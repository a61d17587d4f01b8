"""One object of each kind, for the calls in ``tests.api.routes`` to name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyotp
from django.contrib.auth import SESSION_KEY
from django.utils import timezone

from portal.accounts.services import create_token, digest_of
from portal.accounts.sessions import SessionStore, uid_of
from portal.alerts.evaluating import settle_rule
from portal.alerts.metrics import AlertSubject
from portal.alerts.models import Alert
from portal.alerts.rules import AlertSpec, silence
from portal.alerts.rules import make_rule as make_alert_rule
from portal.audit.invitations import invite
from portal.audit.sign_ins import add_ssh_key
from portal.billing.closing import close_period
from portal.billing.energy_factors import add_factor
from portal.billing.imports import text_digest
from portal.billing.labels import add_project
from portal.billing.mailings import MailingWish, set_mailing
from portal.billing.metering import meter_all
from portal.billing.models import InvoiceLine
from portal.billing.notes import propose_note
from portal.billing.opening_balances import apply_balances
from portal.billing.refunds import set_refund_rule
from portal.billing.selectors import invoice_view, period_of
from portal.budgets.periods import month_start
from portal.budgets.services import BudgetSpec, make_budget
from portal.budgets.wallets import move_by_hand, open_wallet
from portal.catalog.discounts import add_discount
from portal.catalog.services import set_rate
from portal.fleet.models import Device, DeviceModel, Node
from portal.fleet.pauses import pause_intake
from portal.gateway.sharing import share_terminals
from portal.idle.models import IdleStanding
from portal.idle.rules import set_rule
from portal.jobs.models import Artifact, JobAttempt
from portal.jobs.services import end_unbegun, store_secret, submit_job
from portal.jobs.spec import read_spec
from portal.lab.services import LabWish, begin_next, submit_run
from portal.leases.attendees import AttendeeList
from portal.leases.extending import extend_lease
from portal.leases.maintenance import plan_window
from portal.leases.models import Lease
from portal.leases.requests import RequestSpec, submit_request
from portal.leases.reservations import SeriesSpec, create_reservation
from portal.leases.templates import save_template
from portal.leases.workshops import WorkshopSpec, create_workshop
from portal.notifications.announcements import announce_to_people
from portal.notifications.contact_points import add_contact_point
from portal.notifications.delegations import name_deputy
from portal.notifications.services import notify
from portal.policies.services import save_policy
from portal.quotas.cohorts import create_cohort
from portal.quotas.grants import give_priority
from portal.second_factor.models import Passkey
from portal.second_factor.services import begin, confirm
from portal.sso.providers import ProviderSpec, add_provider
from portal.teams.models import TeamInvitation
from scheduler import lab
from tests.api.routes import CREDIT, CREDITED, FORMER_KEY, INVITED, TRIED
from tests.portal.builders import L40S, World


def scene(world: World) -> dict[str, str]:
    """Return the names of one object of each kind, all of bob's team: running, ended, waiting, awaiting."""
    notes = _notes(world)
    ended = world.ended("bob", seconds=600)
    lease = world.active("bob", at=world.now - timedelta(seconds=120))
    asked = world.active("bob", at=world.now - timedelta(seconds=60))
    meter_all(now=world.now)
    requests = _asked_for(world)
    extend_lease(lease=asked, actor=world.user("bob"), extra_s=600, now=world.now)
    notify([world.user("bob")], "lease.ends_soon", target=lease.uid, at=world.now, minutes=10)
    row = create_token(user=world.user("bob"), name="old", scopes=["read"], days=1, now=world.now).row
    period, before = period_of(world.now), period_of(world.now.replace(day=1) - timedelta(days=1))
    bill = invoice_view(world.team("perception"), period_of(ended.activated_at), now=world.now)
    planned = set_rate(
        model=DeviceModel.objects.get(slug=L40S), micro_per_hour=1, starts_at=world.now + timedelta(days=9),
        actor=None, now=world.now,
    )  # fmt: skip
    Node.objects.filter(name="gpu-01").update(power_state="awake")
    Node.objects.update(features=["streams"])
    return {
        "lease": lease.uid,
        "app": "jupyterlab",
        "kind": "lines.csv",
        "rate": str(planned.pk),
        "ended": ended.uid,
        "asked": asked.uid,
        "team": "perception",
        "member": "bob",
        "node": "gpu-01",
        "device": Device.objects.earliest("id").uuid,
        "flavor": "h100",
        "model": "h100-80gb",
        "month": f"{period.starts_at:%Y-%m}",
        "last_month": f"{before.starts_at:%Y-%m}",
        "key": next(iter(bill.lines)).key,
        "token": str(row.pk),
        "ssh_key": str(_ssh_key(world)),
        "template": _template(world),
        "share": str(_share(world, lease)),
        "contact": str(_contact(world)),
        "provider": _provider(world),
        "announcement": _announcement(world),
        "invitation": _invitation(world),
        "delegation": _delegation(world),
        "session": _signed_in(world),
        "guarded": _guarded(world),
        "passkey": _passkey(world),
        **requests,
        **_jobs(world),
        **_rules(world),
        **_idle(world, lease),
        **_alerts(world),
        **notes,
        **_lab(world),
    }


def _asked_for(world: World) -> dict[str, str]:
    """Return what bob asked for, once before and once after his team's larger requests need an approval."""
    bob: dict[str, Any] = {"actor": world.user("bob"), "rights": world.rights("bob"), "now": world.now}
    team = world.team("perception")
    queued = world.submit("bob", most_count=2)
    series = create_reservation(
        team=team, spec=SeriesSpec("h100", 3600, world.now + timedelta(days=2)), **bob
    )
    window = plan_window(
        nodes=[world.nodes["gpu-03"]],
        starts_at=world.now + timedelta(days=1),
        ends_at=world.now + timedelta(days=2),
        reason="fans",
        actor=world.user("operator"),
        now=world.now,
    )
    workshops = [
        _workshop(world, "alice", timedelta(minutes=10)),
        _workshop(world, "alice", timedelta(hours=4)),
    ]
    team.approval_above_gpu_seconds = 10
    team.save()
    workshops.append(_workshop(world, "bob", timedelta(days=1)))
    awaiting = submit_request(team=team, spec=RequestSpec("h100", 3600), **bob)
    waiting = create_reservation(
        team=team, spec=SeriesSpec("h100", 3600, world.now + timedelta(days=3)), **bob
    )
    return {
        **dict(zip(("workshop", "planned_workshop", "waiting_workshop"), workshops, strict=True)),
        "queued": queued.uid,
        "series": series.uid,
        "window": window.uid,
        "awaiting": awaiting.uid,
        "waiting": waiting.uid,
    }


def _workshop(world: World, who: str, after: timedelta) -> str:
    """Return the name of a workshop for bob."""
    made = create_workshop(
        team=world.team("perception"), rights=world.rights(who), now=world.now,
        spec=WorkshopSpec("Class", "h100-1g-10gb", world.now + after, 7200),
        people=AttendeeList(ready=(world.user("bob"),)),
    )  # fmt: skip
    return made.uid


def _invitation(world: World) -> str:
    """Return the key of an invitation of alice's, whose link has ``INVITED``."""
    made = invite(
        team=world.team("perception"), role="approver", rights=world.rights("alice"), now=timezone.now()
    )
    TeamInvitation.objects.filter(pk=made.row.pk).update(digest=digest_of(INVITED))
    return str(made.row.pk)


def _delegation(world: World) -> str:
    """Return the key of a delegation of the approver's to alice."""
    now = timezone.now()
    made = name_deputy(
        rights=world.rights("approver"), deputy="alice", starts_at=None, ends_at=now + timedelta(days=7),
        reason="holiday", now=now,
    )  # fmt: skip
    return str(made.pk)


def _announcement(world: World) -> str:
    """Return the name of an announcement for bob's team."""
    made = announce_to_people(
        level="info", text_en="Fans are changed.", text_zh="", team=world.team("perception"), starts_at=None,
        ends_at=None, rights=world.rights("operator"), now=world.now,
    )  # fmt: skip
    return made.uid


def _jobs(world: World) -> dict[str, str]:
    """Return the names of a job of bob's that waits, of one that failed, and of a secret of his."""
    spec = read_spec({"command": "true", "resources": "h100-1g-10gb"})
    bob, team, rights = world.user("bob"), world.team("perception"), world.rights("bob")
    waiting, failed, printed = (
        submit_job(team=team, actor=bob, rights=rights, spec=spec, now=world.now)[0] for _ in range(3)
    )
    lease = Lease.objects.earliest("pk")
    attempt = JobAttempt.objects.create(
        job=printed, number=1, lease=lease, state="succeeded", started_at=world.now
    )
    artifact = Artifact.objects.create(attempt=attempt, path="empty", size=0, is_checked=True)
    end_unbegun(failed, why="refused", word="no", now=world.now)
    store_secret(user=bob, name="KEPT", value="hunter-2", now=world.now)
    names = {"printed_job": printed.uid, "job": waiting.uid, "failed_job": failed.uid, "secret": "KEPT"}
    return {**names, "artifact": str(artifact.pk)}


def _share(world: World, lease: Lease) -> int:
    bob, alice = world.user("bob"), world.user("alice")
    return share_terminals(lease=lease, actor=bob, user=alice, now=world.now).pk


def _template(world: World) -> str:
    spec = RequestSpec("h100", 3600, opens="notebook")
    team, alice = world.teams["perception"], world.user("alice")
    return save_template(
        team=team, actor=alice, rights=world.rights("alice"), name="kept", spec=spec, now=world.now
    ).uid


def _ssh_key(world: World) -> int:
    return add_ssh_key(user=world.user("bob"), name="old", key=FORMER_KEY, now=world.now).pk


def _contact(world: World) -> int:
    bob, hook = world.user("bob"), "https://example.org/old"
    made = add_contact_point(
        user=bob, kind="webhook", name="old", address=hook, origin="https://berth.test/", now=world.now
    )
    return made.row.pk


def _provider(world: World) -> str:
    operator, rights = world.user("operator"), world.rights("operator")
    spec = ProviderSpec(name="Old", issuer="https://old.example.org", client_id="b", secret="s", is_active=False,
                        admission="everybody")  # fmt: skip
    return add_provider(slug="old", spec=spec, actor=operator, rights=rights, now=world.now).slug


def _guarded(world: World) -> str:
    """Return the name of somebody with a second factor."""
    approver = world.user("approver")
    code = pyotp.TOTP(begin(approver, now=world.now).secret).at(world.now)
    confirm(approver, code, now=world.now)
    return approver.username


def _passkey(world: World) -> str:
    """Return the key of a passkey of the approver's."""
    row = Passkey.objects.create(
        user=world.user("approver"),
        name="ring",
        credential_id=b"ring",
        public_key=b"key",
        created_at=world.now,
    )
    return str(row.pk)


def _signed_in(world: World) -> str:
    """Return the name of a browser session of bob's."""
    store = SessionStore()
    store[SESSION_KEY] = str(world.user("bob").pk)
    store.save()
    return uid_of(str(store.session_key))


def _notes(world: World) -> dict[str, str]:
    """Return a note that finance may decide, one of its own, on the invoice of ``CREDIT``; rule, discount, project."""
    at = CREDITED.replace(hour=9)
    world.ended("bob", seconds=3600, at=at)
    close_period(period=period_of(at), actor=None, now=world.now)
    line = InvoiceLine.objects.get(invoice__number=CREDIT["invoice"])
    made = [
        propose_note(
            line=line, amount_micro=10_000, is_credit=True, reason="fault", lease=None, actor=world.user(name),
            now=world.now,
        )
        for name in ("alice", "finance")
    ]  # fmt: skip
    rule = set_refund_rule(
        cause="node_lost", credit_milli=1000, most_s=None, within_s=None,
        starts_at=datetime.now(UTC) + timedelta(days=9), actor=None,
    )  # fmt: skip
    discount = add_discount(
        name="Night",
        off_milli=300,
        starts_at=datetime.now(UTC) + timedelta(days=9),
        actor=None,
        now=datetime.now(UTC),
    )
    factor = add_factor(
        kind="pue", site="Hall Z", value=Decimal("1.2"), source="measured",
        starts_at=datetime.now(UTC) + timedelta(days=9), ends_at=None, actor=None,
    )  # fmt: skip
    add_project(
        team=world.team("vision"), code="EU-4711", name="Segmentation", cost_centre="", tags={},
        rights=world.rights("alice"), now=world.now,
    )  # fmt: skip
    mailing = set_mailing(
        team=world.team("perception"), wish=MailingWish(None, ["csv"], "en", ["finance"]),
        rights=world.rights("finance"), now=world.now,
    )  # fmt: skip
    opening = f"team,used,currency,as_of\nspeech,10,EUR,{datetime.now(UTC):%Y-%m-%d}\n"
    brought = apply_balances(
        opening, digest=text_digest(opening), rights=world.rights("finance"), now=datetime.now(UTC)
    )
    return {
        "import": brought.uid,
        "mailing": str(mailing.pk),
        "project": "EU-4711",
        "note": made[0].uid,
        "own_note": made[1].uid,
        "rule": str(rule.pk),
        "discount": str(discount.pk),
        "factor": str(factor.pk),
    }


def _idle(world: World, lease: Lease) -> dict[str, str]:
    """Return a rule that tells holders of idle leases, with one of them that idles."""
    rule = set_rule(
        team=None, flavor=None, then="warn", actor=world.user("operator"), rights=world.rights("operator"),
        now=world.now,
    )  # fmt: skip
    IdleStanding.objects.create(
        lease=lease, state="held_idle", why="nothing", since=world.now, judged_at=world.now, minutes=60, known=60,
        then="warn", warned_at=world.now,
    )  # fmt: skip
    return {"idle_rule": str(rule.pk)}


def _alerts(world: World) -> dict[str, str]:
    """Return a rule with an alert that fires, one whose pause of intake is not ended by hand yet, and a silence."""
    by: dict[str, Any] = {
        "actor": world.user("operator"),
        "rights": world.rights("operator"),
        "now": world.now,
    }
    rule = make_alert_rule(spec=AlertSpec("node_silence", 300), **by)
    node = world.nodes["gpu-01"]
    settle_rule(rule.pk, {AlertSubject(f"node:{node.pk}", node.name, node.pk): 900.0}, now=world.now)
    silent = silence(
        rule=None, node=node, team=None, reason="new switch", ends_at=world.now + timedelta(hours=1), **by
    )
    hot = make_alert_rule(spec=AlertSpec("device_temp", 90, action="pause"), **by)
    board = node.devices.get(index=0)
    settle_rule(
        hot.pk, {AlertSubject(f"device:{board.pk}", "gpu-01/0", node.pk, board.pk): 95.0}, now=world.now
    )
    paused = Alert.objects.get(rule=hot).uid
    # Its time is over, so that it keeps no other route of the scene from a grant.
    ended = world.now - timedelta(hours=1)
    pause_intake(cause=paused, node=node, device=board, reason="hot", now=ended)
    found = Alert.objects.get(rule=rule).uid
    return {"alert": found, "paused_alert": paused, "alert_rule": str(rule.pk), "silence": silent.uid}


def _rules(world: World) -> dict[str, str]:
    """Return the names of a policy in force, a draft, an empty cohort and a priority grant of bob's team."""
    operator, rights = world.user("operator"), world.rights("operator")
    made = [
        save_policy(
            actor=operator, rights=rights, name="rules", body=body, note="", based_on=before, is_active=not before,
            now=world.now,
        )
        for body, before in (({}, 0), ({"depth": 3}, 1))
    ]  # fmt: skip
    cohort = create_cohort(actor=operator, rights=rights, name="shared", now=world.now)
    grant = give_priority(
        team=world.team("perception"), actor=operator, rights=rights, steps=1, starts_at=world.now,
        ends_at=world.now + timedelta(days=1), reason="paper deadline", now=world.now,
    )  # fmt: skip
    budget = make_budget(
        team=world.team("perception"), actor=operator, rights=world.rights("finance"),
        spec=BudgetSpec(5_000_000, month_start(world.now)), now=world.now,
    )  # fmt: skip
    who = {"team": world.team("perception"), "actor": operator, "rights": world.rights("finance")}
    open_wallet(**who, at_zero="block", now=world.now)  # type: ignore[arg-type]
    move_by_hand(**who, kind="top_up", amount_micro=10**12, reference="first", now=world.now)  # type: ignore[arg-type]
    policy, draft = (str(row.version) for row in made)
    names = {"policy": policy, "draft": draft, "cohort": str(cohort.pk)}
    return names | {"grant": str(grant.pk), "budget": str(budget.pk)}


def _lab(world: World) -> dict[str, str]:
    """Return a run of the lab that is done, a request of it, and a run that waits."""
    wish = LabWish("try", [0, 1], trace=TRIED, nodes=1)
    operator: dict[str, Any] = {"actor": world.user("operator"), "rights": world.rights("operator")}
    done = submit_run(wish=wish, now=world.now, **operator)
    begun = begin_next(now=world.now)
    assert begun is not None
    lab.carry_out(done.uid, begun.attempts)
    waits = submit_run(wish=wish, now=world.now, **operator)
    return {"lab_run": done.uid, "played": "%232", "lab_waits": waits.uid}
