"""Every call of the API once: who may make it, on what, with which body, and what it answers.

``test_every_route_is_in_the_table`` fails when an address or a method is missing here, so that a
new one cannot escape the tests that walk this table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib.auth import SESSION_KEY

from portal.accounts.services import create_token
from portal.accounts.sessions import SessionStore, uid_of
from portal.audit.sign_ins import add_ssh_key
from portal.billing.closing import close_period
from portal.billing.metering import meter_all
from portal.billing.models import InvoiceLine
from portal.billing.notes import propose_note
from portal.billing.refunds import set_refund_rule
from portal.billing.selectors import invoice_view, period_of
from portal.budgets.periods import month_start
from portal.budgets.services import BudgetSpec, make_budget
from portal.budgets.wallets import move_by_hand, open_wallet
from portal.catalog.services import set_rate
from portal.fleet.models import Device, DeviceModel, Node
from portal.gateway.sharing import share_terminals
from portal.jobs.models import Artifact, JobAttempt
from portal.jobs.services import end_unbegun, store_secret, submit_job
from portal.jobs.spec import read_spec
from portal.leases.extending import extend_lease
from portal.leases.maintenance import plan_window
from portal.leases.models import Lease
from portal.leases.requests import RequestSpec, submit_request
from portal.leases.reservations import SeriesSpec, create_reservation
from portal.leases.templates import save_template
from portal.notifications.contact_points import add_contact_point
from portal.notifications.services import notify
from portal.policies.services import save_policy
from portal.quotas.cohorts import create_cohort
from portal.quotas.grants import give_priority
from portal.sso.providers import ProviderSpec, add_provider
from tests.portal.builders import L40S, PASSWORD, World

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILPxGeb86E9Ny6pmjXf8Ja4MXo47LZUX5zSmaYUfvhuB bob@laptop"
FORMER_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN86H8lzB2uFc1k/gehKkez4d6zvPy0pkiV0dINeYlMf bob@old"
TEMPLATE = {"name": "Notebook", "flavor": "h100", "duration_s": 3600, "opens": "notebook"}
MISSING = {
    "lease": "lse-0000000000000000",
    "ended": "lse-0000000000000000",
    "asked": "lse-0000000000000000",
    "queued": "req-0000000000000000",
    "awaiting": "req-0000000000000000",
    "team": "no-such-team",
    "member": "no-such-person",
    "node": "no-such-node",
    "device": "GPU-00000000-0000-0000-0000-000000000000",
    "flavor": "no-such-flavor",
    "series": "rsv-0000000000000000",
    "waiting": "rsv-0000000000000000",
    "window": "mnt-0000000000000000",
    "month": "2001-01",
    "rate": "999999999",
    "key": "9-9-9",
    "rule": "999999999",
    "note": "nte-0000000000000000",
    "own_note": "nte-0000000000000000",
    "token": "999999999",
    "ssh_key": "999999999",
    "template": "tpl-0000000000000000",
    "share": "999999999",
    "contact": "999999999",
    "session": "ses-0000000000000000",
    "policy": "999999999",
    "draft": "999999999",
    "cohort": "999999999",
    "grant": "999999999",
    "budget": "999999999",
    "job": "job-0000000000000000",
    "printed_job": "job-0000000000000000",
    "failed_job": "job-0000000000000000",
    "secret": "NO_SUCH_SECRET",
    "provider": "no-such-provider",
}


@dataclass(frozen=True)
class Route:
    """One call. ``path`` names objects in braces; ``is_foreign`` says charlie must not see them."""

    method: str
    path: str
    who: str = "bob"
    body: Any = None
    status: int = 200
    is_foreign: bool = False
    headers: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    def at(self, objects: dict[str, str]) -> str:
        """Return the address with the objects filled in."""
        return self.path.format(**objects)


HALF = {
    "device_model": "h100-80gb",
    "slug": "h100-half",
    "name": "H100 half",
    "mode": "timeslice",
    "memory_mib": 40_000,
}
ASK = {"flavor": "h100-1g-10gb", "duration_s": 3600}
GRANT = {
    "steps": 5,
    "starts_at": "2900-01-01T00:00:00Z",
    "ends_at": "2900-01-02T00:00:00Z",
    "reason": "paper deadline",
}
CREDITED = datetime.now(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0) - timedelta(days=40)
CREDIT = {
    "invoice": f"{CREDITED:%Y%m}-0001", "line": 1, "kind": "credit", "amount": "0.01", "reason": "fault",
}  # fmt: skip
BUDGET = {
    "amount": "6000.00",
    "first_month": "2900-01",
    "thresholds": [
        {"percent": 80, "action": "notify"},
        {"percent": 100, "action": "block", "basis": "forecast"},
    ],
}
TOP_UP = {"kind": "top_up", "amount": "100.00", "reference": "transfer 1"}
# Not offered, so that nobody asks whether it answers.
PROVIDER = {
    "name": "The lab", "issuer": "https://sso.example.org", "client_id": "berth", "client_secret": "s3cret",
    "rules": [{"group": "ml", "team": "perception", "role": "researcher"}], "is_active": False,
}  # fmt: skip
CHANGED_BUDGET = {"amount": "10.00", "first_month": f"{datetime.now(UTC):%Y-%m}", "last_month": "2899-12"}
_SOON = datetime.now(UTC).replace(microsecond=0) + timedelta(days=3)
AGAIN = {**ASK, "starts_at": _SOON.isoformat(), "repeat": "weekly", "zone": "Europe/Berlin"}
AWAY = {"starts_at": _SOON.isoformat(), "ends_at": (_SOON + timedelta(hours=2)).isoformat()}
ROUTES = (
    Route("GET", "me/"),
    Route("PUT", "me/", body={"time_zone": "Europe/Berlin"}),
    Route("GET", "setup/steps/", "operator"),
    Route("GET", "teams/"),
    Route("POST", "teams/", "alice", {"parent": "vision", "name": "Robots"}, 201),
    Route("GET", "teams/{team}/", is_foreign=True),
    Route("PUT", "teams/{team}/", "alice", {"approval_above_gpu_seconds": 7200}, 200, True),
    Route("POST", "teams/{team}/people/", "alice", {"username": "dora", "role": "researcher"}, 201, True),
    Route("POST", "people/{member}/invitation/", "operator", None, 201, True),
    Route("GET", "teams/{team}/images/", is_foreign=True),
    Route("PUT", "teams/{team}/images/", "alice", {"images": ["registry.example/a"]}, 200, True),
    Route("GET", "teams/{team}/members/", is_foreign=True),
    Route("POST", "teams/{team}/members/", "alice", {"username": "charlie", "role": "researcher"}, 201, True),
    Route("DELETE", "teams/{team}/members/{member}/researcher/", "alice", None, 204, True),
    Route("GET", "teams/{team}/quota/", is_foreign=True),
    Route(
        "PUT",
        "teams/{team}/quota/",
        "alice",
        {"guaranteed_milli": 100, "ceiling_milli": 4000},
        200,
        True,
        {"If-Match": '"1"'},
    ),
    Route("GET", "teams/{team}/budgets/", is_foreign=True),
    Route("POST", "teams/{team}/budgets/", "finance", BUDGET, 201, True),
    Route("GET", "teams/{team}/budgets/{budget}/", is_foreign=True),
    Route("PUT", "teams/{team}/budgets/{budget}/", "finance", CHANGED_BUDGET, 200, True, {"If-Match": '"1"'}),
    Route("DELETE", "teams/{team}/budgets/{budget}/", "finance", None, 204, True),
    Route("GET", "wallets/"),
    Route("GET", "teams/{team}/wallet/", is_foreign=True),
    Route("PUT", "teams/{team}/wallet/", "finance", {"at_zero": "preemptible"}, 200, True),
    Route("DELETE", "teams/{team}/wallet/", "finance", None, 204, True),
    Route("GET", "teams/{team}/wallet/movements/", is_foreign=True),
    Route("POST", "teams/{team}/wallet/movements/", "finance", TOP_UP, 201, True),
    Route("GET", "teams/{team}/wallet/csv/", is_foreign=True),
    Route("GET", "teams/{team}/priority/", is_foreign=True),
    Route("POST", "teams/{team}/priority/", "alice", GRANT, 201, True),
    Route("POST", "teams/{team}/priority/{grant}/revoke/", "alice", None, 200, True),
    Route("GET", "cohorts/", "operator"),
    Route("POST", "cohorts/", "operator", {"name": "another"}, 201),
    Route("GET", "cohorts/{cohort}/", "operator", is_foreign=True),
    Route("PUT", "cohorts/{cohort}/", "operator", {"name": "renamed"}, 200, True),
    Route("DELETE", "cohorts/{cohort}/", "operator", None, 204, True),
    Route("GET", "policies/", "operator"),
    Route("POST", "policies/", "operator", {"name": "next", "body": {"depth": 5}, "based_on": 1}, 201),
    Route("POST", "policies/check/", "operator", {"body": {"depth": 5}, "preview": True}),
    Route("GET", "policies/{policy}/", "operator", is_foreign=True),
    Route("POST", "policies/{draft}/activate/", "operator", {"based_on": 1}, 200, True),
    Route("POST", "policies/{draft}/roll-back/", "operator", {"based_on": 1}, 201, True),
    Route("GET", "policies/{policy}/diff/{draft}/", "operator", is_foreign=True),
    Route("GET", "cycles/", "operator"),
    Route("GET", "utilisation/", "operator"),
    Route("GET", "teams/{team}/spend/", is_foreign=True),
    Route("GET", "teams/{team}/spend/days/", is_foreign=True),
    Route("GET", "teams/{team}/standing/", is_foreign=True),
    Route("GET", "flavors/"),
    Route("POST", "flavors/", "operator", HALF, 201),
    Route("GET", "flavors/{flavor}/"),
    Route("PUT", "flavors/{flavor}/", "operator", {"max_count": 2}),
    Route("POST", "models/{model}/flavors/", "operator"),
    Route("GET", "currency/"),
    Route("PUT", "currency/", "finance", {"currency": "EUR"}),
    Route("POST", "quote/", body=ASK),
    Route("GET", "availability/"),
    Route("GET", "rates/"),
    Route("DELETE", "rates/{rate}/", "finance", status=204),
    Route("PUT", "rates/{rate}/", "finance", {"starts_at": "2900-01-01T00:00:00Z"}),
    Route("GET", "forecasts/calibration/"),
    Route(
        "POST",
        "rates/",
        "finance",
        {"device_model": "h100-80gb", "price_per_hour": "4.10", "starts_at": "2900-01-01T00:00:00Z"},
        201,
    ),
    Route("GET", "templates/"),
    Route("POST", "templates/", "alice", {**TEMPLATE, "team": "perception"}, 201),
    Route("GET", "templates/{template}/", is_foreign=True),
    Route("DELETE", "templates/{template}/", "alice", status=204, is_foreign=True),
    Route("GET", "requests/"),
    Route("POST", "requests/", body=ASK, status=201),
    Route("GET", "requests/{queued}/", is_foreign=True),
    Route("GET", "requests/{queued}/events/", is_foreign=True),
    Route("POST", "requests/{queued}/growth/", body={"most_count": 1}, is_foreign=True),
    Route("POST", "requests/{queued}/withdraw/", is_foreign=True),
    Route("POST", "requests/{awaiting}/approve/", "approver", {"note": "yes"}, 200, True),
    Route("POST", "requests/{awaiting}/reject/", "approver", {"note": "no"}, 200, True),
    Route("GET", "jobs/"),
    Route("POST", "jobs/", body={"job": {"command": "true", "resources": "h100-1g-10gb"}}, status=201),
    Route("GET", "jobs/images/"),
    Route("GET", "jobs/{job}/", is_foreign=True),
    Route("GET", "jobs/{job}/log/", is_foreign=True),
    Route("GET", "jobs/{printed_job}/log/raw/", is_foreign=True),
    Route("GET", "jobs/{printed_job}/artifacts/", is_foreign=True),
    Route("GET", "jobs/{printed_job}/artifacts/{artifact}/", is_foreign=True),
    Route("POST", "jobs/{job}/cancel/", is_foreign=True),
    Route("POST", "jobs/{failed_job}/retry/", is_foreign=True),
    Route("GET", "secrets/"),
    Route("PUT", "secrets/{secret}/", body={"value": "hunter-2"}),
    Route("DELETE", "secrets/{secret}/", status=204, is_foreign=True),
    Route("GET", "leases/"),
    Route("GET", "leases/{lease}/", is_foreign=True),
    Route("POST", "leases/{lease}/extend/", body={"extra_s": 60}, is_foreign=True),
    Route("POST", "leases/{asked}/extension/approve/", "approver", {"note": "yes"}, 200, True),
    Route("POST", "leases/{asked}/extension/reject/", "approver", {"note": "no"}, 200, True),
    Route("POST", "leases/{asked}/extension/withdraw/", is_foreign=True),
    Route("POST", "leases/{lease}/release/", is_foreign=True),
    Route("POST", "leases/{lease}/terminal/", status=201, is_foreign=True),
    Route("POST", "leases/{lease}/watch/", "alice", status=201, is_foreign=True),
    Route("GET", "leases/{lease}/terminal/shares/", is_foreign=True),
    Route("POST", "leases/{lease}/terminal/shares/", body={"user": None}, status=201, is_foreign=True),
    Route("DELETE", "leases/{lease}/terminal/shares/{share}/", status=204, is_foreign=True),
    Route("GET", "leases/{lease}/apps/", is_foreign=True),
    Route("POST", "leases/{lease}/apps/{app}/", status=201, is_foreign=True),
    Route("POST", "leases/{lease}/ssh/", status=201, is_foreign=True),
    Route("GET", "leases/{lease}/events/", is_foreign=True),
    Route("GET", "leases/{lease}/access/", is_foreign=True),
    Route("GET", "leases/{ended}/receipt/", is_foreign=True),
    Route("GET", "leases/{ended}/usage/", is_foreign=True),
    Route("GET", "leases/{lease}/sample/", is_foreign=True),
    Route("GET", "lease-events/"),
    Route("GET", "calendar/"),
    Route("GET", "calendar/mine.ics/"),
    Route("GET", "reservations/"),
    Route("POST", "reservations/", body=AGAIN, status=201),
    Route("GET", "reservations/{series}/", is_foreign=True),
    Route("POST", "reservations/{waiting}/approve/", "alice", {"note": "go"}, 200, True),
    Route("POST", "reservations/{waiting}/reject/", "alice", {"note": "too long"}, 200, True),
    Route("POST", "reservations/{series}/cancel/", is_foreign=True),
    Route("GET", "maintenance/"),
    Route("POST", "maintenance/", "operator", {**AWAY, "nodes": ["gpu-01"], "reason": "fans"}, 201),
    Route("POST", "maintenance/preview/", "operator", {**AWAY, "nodes": ["gpu-01"], "reason": "fans"}),
    Route("GET", "maintenance/{window}/"),
    Route("POST", "maintenance/{window}/change/", "operator", AWAY, 200, True),
    Route("POST", "maintenance/{window}/cancel/", "operator", None, 200, True),
    Route("GET", "nodes/"),
    Route("GET", "nodes/", "operator"),
    Route("POST", "nodes/", "operator", {"name": "gpu-99"}, 201),
    Route("GET", "nodes/{node}/"),
    Route("POST", "nodes/{node}/cordon/", "operator", {"reason": "fan"}, 200, True),
    Route("POST", "nodes/{node}/uncordon/", "operator", None, 200, True),
    Route("GET", "nodes/{node}/drain/", "operator", None, 200, True),
    Route("POST", "nodes/{node}/drain/", "operator", {"reason": "fan"}, 200, True),
    Route("POST", "nodes/{node}/drain/preview/", "operator", {}, 200, True),
    Route("POST", "nodes/{node}/undrain/", "operator", None, 200, True),
    Route("GET", "nodes/{node}/acceptance/", "operator", None, 200, True),
    Route("POST", "nodes/{node}/accept/", "operator", {}, 200, True),
    Route("GET", "nodes/{node}/life/", "operator", None, 200, True),
    Route("POST", "nodes/{node}/rotate-key/", "operator", None, 409, True),
    Route("POST", "nodes/{node}/revoke/", "operator", None, 200, True),
    Route("GET", "nodes/{node}/power/", "operator", None, 200, True),
    Route("POST", "nodes/{node}/wake/", "operator", {}, 200, True),
    Route("POST", "nodes/{node}/sleep/", "operator", None, 200, True),
    Route("GET", "fleet/energy/", "operator"),
    Route("GET", "devices/"),
    Route("GET", "devices/", "operator"),
    Route("GET", "nodes/{node}/processes/", "operator", None, 200, True),
    Route("POST", "nodes/{node}/clear-health/", "operator", None, 200, True),
    Route("POST", "devices/{device}/clear-health/", "operator", None, 200, True),
    Route("POST", "devices/{device}/quarantine/", "operator", {"reason": "fan"}, 200, True),
    Route("GET", "map/"),
    Route("GET", "invoices/"),
    Route("GET", "invoices/{team}/{month}/", is_foreign=True),
    Route("GET", "invoices/{team}/{month}/csv/", is_foreign=True),
    Route("GET", "invoices/{team}/{month}/pdf/", is_foreign=True),
    Route("GET", "invoices/{team}/{month}/lines/{key}/usage/", is_foreign=True),
    Route("GET", "reports/{month}/"),
    Route("GET", "reports/{month}/files/{kind}/"),
    Route("GET", "usage/"),
    Route("GET", "periods/"),
    Route("GET", "periods/{last_month}/", "finance", None, 200, True),
    Route("GET", "periods/{last_month}/rehearsal/", "finance", None, 200, True),
    Route("GET", "periods/{last_month}/capacity/", "finance", None, 200, True),
    Route("GET", "periods/{last_month}/capacity/{device}/", "operator", None, 200, True),
    Route("POST", "periods/{last_month}/close/", "finance", None, 200, True),
    Route("GET", "refund-rules/"),
    Route("POST", "refund-rules/", "finance", {"cause": "maintenance", "credit_percent": 100}, 201),
    Route("DELETE", "refund-rules/{rule}/", "finance", status=204),
    Route("GET", "notes/"),
    Route("POST", "notes/", "finance", CREDIT, 201),
    Route("GET", "notes/{note}/", "finance", None, 200, True),
    Route("POST", "notes/{note}/approve/", "finance", None, 200, True),
    Route("POST", "notes/{note}/reject/", "finance", {"note": "not ours"}, 200, True),
    Route("POST", "notes/{own_note}/withdraw/", "finance", None, 200, True),
    Route("GET", "tokens/"),
    Route("POST", "tokens/", body={"name": "laptop", "scopes": ["read"]}, status=201),
    Route("DELETE", "tokens/{token}/", status=204, is_foreign=True),
    Route("GET", "contact-points/"),
    Route(
        "POST", "contact-points/", body={"kind": "webhook", "address": "https://example.org/hook"}, status=201
    ),
    Route("GET", "contact-points/{contact}/", is_foreign=True),
    Route("PUT", "contact-points/{contact}/", body={"muted": ["jobs"]}, is_foreign=True),
    Route("GET", "contact-points/{contact}/deliveries/", is_foreign=True),
    Route("POST", "contact-points/{contact}/test/", status=202, is_foreign=True),
    Route("DELETE", "contact-points/{contact}/", status=204, is_foreign=True),
    Route("GET", "search/"),
    Route("GET", "ssh-keys/"),
    Route("POST", "ssh-keys/", body={"key": PUBLIC_KEY}, status=201),
    Route("DELETE", "ssh-keys/{ssh_key}/", status=204, is_foreign=True),
    Route("GET", "sessions/"),
    Route("DELETE", "sessions/", status=204),
    Route("DELETE", "sessions/{session}/", status=204, is_foreign=True),
    Route("GET", "identity-providers/", "operator"),
    Route("POST", "identity-providers/", "operator", {**PROVIDER, "slug": "new"}, 201),
    Route("GET", "identity-providers/{provider}/", "operator"),
    Route("PUT", "identity-providers/{provider}/", "operator", PROVIDER),
    Route("DELETE", "identity-providers/{provider}/", "operator", status=204),
    Route("PUT", "password/", body={"old": PASSWORD, "new": "a long walk home"}),
    Route("GET", "notifications/"),
    Route("POST", "notifications/read/"),
    Route("GET", "audit/", "operator"),
    Route("GET", "fleet/accounting/", "operator"),
    Route("GET", "fleet/invariants/", "operator"),
    Route("GET", "fleet/overlaps/", "operator"),
)
WRITES = tuple(route for route in ROUTES if route.method in ("POST", "PUT"))


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
        "session": _signed_in(world),
        **requests,
        **_jobs(world),
        **_rules(world),
        **notes,
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
    team.approval_above_gpu_seconds = 10
    team.save()
    awaiting = submit_request(team=team, spec=RequestSpec("h100", 3600), **bob)
    waiting = create_reservation(
        team=team, spec=SeriesSpec("h100", 3600, world.now + timedelta(days=3)), **bob
    )
    return {
        "queued": queued.uid,
        "series": series.uid,
        "window": window.uid,
        "awaiting": awaiting.uid,
        "waiting": waiting.uid,
    }


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


def _signed_in(world: World) -> str:
    """Return the name of a browser session of bob's."""
    store = SessionStore()
    store[SESSION_KEY] = str(world.user("bob").pk)
    store.save()
    return uid_of(str(store.session_key))


def _notes(world: World) -> dict[str, str]:
    """Return a note that finance may decide, one of its own, both on the invoice of ``CREDIT``, and a refund rule."""
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
    return {"note": made[0].uid, "own_note": made[1].uid, "rule": str(rule.pk)}


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
