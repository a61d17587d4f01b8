"""Every page there is: who sees it, and how to get there in the demo story.

A new page gets a line here; the tests then look at it in both themes, both languages and three widths.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.visitor import Visitor

Address = str | Callable[[Visitor], str]
LEASE, REQUEST = r"/leases/lse-[^/\"]+/", r"/requests/req-[^/\"]+/"
WORKSHOP = r"/workshops/wks-[^/\"]+/"
LINE = r"/invoices/[a-z]+/[\d-]+/lines/[^/\"]+/"


@dataclass(frozen=True)
class Page:
    """A page as one person sees it; ``act`` brings it into the state to look at, ``expect`` is its one trouble."""

    name: str
    who: str
    address: Address
    route: str
    act: Callable[[Any], None] | None = None
    status: int = 200
    expect: str = "(?!)"

    def path(self, visitor: Visitor) -> str:
        """Return the address, found by following links where it depends on the data."""
        return self.address if isinstance(self.address, str) else self.address(visitor)

    def visit(self, visitor: Visitor, tab: Any = None) -> Any:
        """Open the page, in a tab that is there or in a new one, and bring it into its state."""
        visitor.expect(self.expect)
        page = tab or visitor.context.new_page()
        visitor.go(page, self.path(visitor), status=self.status)
        if self.act:
            self.act(page)
        return page


def first(path: str, pattern: str, more: str = "") -> Address:
    """Return an address that is the first link of its kind on another page."""
    return lambda visitor: visitor.link(path, pattern) + more


def _chosen(page: Any) -> None:
    page.locator("input[name=flavor]:enabled").first.check()
    page.locator("#quote .money").first.wait_for()


def _refused(page: Any) -> None:
    page.locator("#request-form").evaluate("form => { form.noValidate = true }")
    page.locator("#id_duration").fill("soon")
    page.locator("#request-form button[type=submit].btn-primary").click()
    page.locator(".field-error").first.wait_for()


def _dialog(name: str) -> Callable[[Any], None]:
    def act(page: Any) -> None:
        page.locator(f"[data-open-dialog={name}]").first.click()
        page.locator(f"dialog#{name}[open]").wait_for()

    return act


def _connected(page: Any) -> None:
    page.locator("[data-terminal][data-state=open]").wait_for()


def _lab_run(page: Any) -> None:
    page.locator("#id_name").fill("Built-in rules beside ours")
    page.locator("summary", has_text=re.compile("trace|轨迹")).click()
    rows = "".join(f"{n},{n * 300},{600 + n % 7 * 500},{1 + n % 8},t{n % 3}\n" for n in range(60))
    page.locator("#id_trace").fill("seq,submit_s,duration_s,gpus,vc\n" + rows)
    page.locator("#id_nodes").fill("1")
    page.locator("form[action$='/lab/'] button[type=submit]").click()
    page.locator("#why").wait_for(timeout=60_000)


def _job_run(page: Any) -> None:
    page.locator("#id_command").fill(
        "for i in 1 2 3; do echo line $i; done; echo kept > model.ckpt; ln -s / link; exit 3"
    )
    page.locator("#id_artifacts").fill("*.ckpt, link")
    page.locator("#job-form button[type=submit]").click()
    page.locator(".job-log p").nth(2).wait_for()
    for _ in range(100):
        if page.locator("#files a.btn").count():
            break
        page.wait_for_timeout(200)
        page.reload()
    page.locator(".job-log p").nth(2).wait_for()
    page.locator("#files a.btn").wait_for()


def _token_made(page: Any) -> None:
    page.locator("#id_name").fill("notebook")
    page.locator("aside form button[type=submit]").click()
    page.locator(".snippet").first.wait_for()


def _contact_added(page: Any) -> None:
    page.locator("#id_kind").select_option("webhook")
    page.locator("#id_address").fill("https://hooks.example.org/berth")
    page.locator("#id_name").fill("hook")
    page.locator("aside form button[type=submit]").click()
    if "/contact-points/" in page.url and page.locator(".field-error").count():
        page.goto(page.url)
        page.locator("main td a").first.click()
    page.locator("h2", has_text=re.compile("What and when|内容与时间")).wait_for()


def _mailing_added(page: Any) -> None:
    if not page.locator("main td a").count():
        page.locator("#id_recipients").fill("finance")
        page.locator("aside form button[type=submit]").click()
    page.locator("main td a").first.wait_for()


def _opening_previewed(page: Any) -> None:
    today = datetime.now(UTC).date()
    rows = f"robotics,,10,EUR,{today}\nnobody,5,,EUR,{today}\n"
    page.locator("#id_csv").fill(f"team,balance,used,currency,as_of\n{rows}")
    page.locator("button[value=preview]").click()
    page.locator(".field-error").first.wait_for()


def _usage_previewed(page: Any) -> None:
    day = f"{datetime.now(UTC) - timedelta(minutes=5):%Y-%m-%dT%H:%M:%SZ},{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    rows = f"cloud-a,i-1,robotics,8 x A100,{day},8,512.40,EUR\ncloud-a,i-2,nobody,L4,{day},0,5,USD\n"
    page.locator("#id_csv").fill(
        f"source,external_id,team,description,start,end,gpus,amount,currency\n{rows}"
    )
    page.locator("button[value=preview]").click()
    page.locator(".field-error").first.wait_for()


def _opening_imported(page: Any) -> None:
    if page.locator("main td a").count():
        return
    page.goto(page.url + "balances/")
    page.locator("#id_csv").fill(f"team,used,currency,as_of\nrobotics,10,EUR,{datetime.now(UTC).date()}\n")
    page.locator("button[value=preview]").click()
    page.locator("button[value=apply]").click()
    page.locator("form[action$='/undo/']").wait_for()
    page.goto(page.url.partition("imp-")[0])


def _project_added(page: Any) -> None:
    if not page.locator("main td a").count():
        page.locator("#id_code").fill("EU-4711")
        page.locator("#id_name").fill("Segmentation")
        page.locator("aside form button[type=submit]").click()
    page.locator("main td a").first.wait_for()


def _password_refused(page: Any) -> None:
    for name in ("old", "new", "again"):
        page.locator(f"#id_{name}").fill(f"not the {name} one")
    page.locator("#password button[type=submit]").click()
    page.locator(".field-error").first.wait_for()


def _provider_added(page: Any) -> None:
    if not page.locator("main td a", has_text="The lab").count():
        page.goto(page.url + "new/")
        fields = {"name": "The lab", "slug": "lab", "issuer": "https://sso.example.org", "client_id": "berth"}
        for name, value in {**fields, "secret": "s3cret", "rules": "researcher perception ml-people"}.items():
            page.locator(f"#id_{name}").fill(value)
        page.locator("#id_is_active").uncheck()
        page.locator("main form button[type=submit]").click()
    page.locator("main td a", has_text="The lab").click()
    page.locator(".snippet").wait_for()


def _workshop_previewed(page: Any) -> None:
    page.locator("#id_name").fill("Introduction to CUDA")
    page.locator("#id_team").select_option("perception")
    page.locator("#id_starts_at").fill(f"{datetime.now(UTC) + timedelta(days=2):%Y-%m-%d}T09:00")
    page.locator("#id_people").fill("bob\nalice@northwind.example\ncharlie\nbob\nnobody")
    page.locator("button[value=preview]").click()
    page.locator(".note.tone-bad").wait_for()


def _enrolled(page: Any) -> None:
    page.locator("#enrol [name=name]").fill("gpu-09")
    page.locator("#enrol button[type=submit]").click()
    page.locator(".snippet").first.wait_for()


def _row_added(page: Any) -> None:
    page.locator("details.fold", has=page.locator("#rows-pool_times")).locator("summary").click()
    page.locator("#rows-pool_times button[value^=add]").click()
    page.locator("[name='pools.times[1].from']").wait_for()


def _fine_tune(page: Any, value: str) -> None:
    page.locator("details.policy-more", has=page.locator("[name=depth]")).locator("summary").click()
    page.locator("[name=depth]").fill(value)


def _rules_refused(page: Any) -> None:
    _fine_tune(page, "none")
    page.locator("#policy-form button.btn-lg").click()
    page.locator(".field-error").first.wait_for()


def _tried(page: Any) -> None:
    _fine_tune(page, "3")
    page.locator("#policy-form button.btn-lg").click()
    page.locator("aside button[value=confirm]").click()
    page.locator("#tried").wait_for()


def _priority_opened(page: Any) -> None:
    page.locator("#priority summary").click()
    page.locator("#priority [name=reason]").wait_for()


def _past(visitor: Visitor) -> str:
    """Return an invoice of the last month that is over."""
    months = sorted(re.findall(r"/finance/months/(\d{4}-\d{2})/", visitor.text("/finance/months/")))
    past = [month for month in months if month != months[-1]]
    return visitor.link(f"/invoices/?month={past[-1]}", rf"/invoices/perception/{past[-1]}/")


PAGES = (
    Page("sign-in", "", "/sign-in/", "sign_in"),
    Page("search", "bob", "/search/?q=a", "search"),
    Page("home", "bob", "/", "home"),
    Page("home-finance", "finance", "/", "home"),
    Page("home-operator", "operator", "/", "home"),
    Page("home-operator-week", "operator", "/?range=7d", "home"),
    Page("home-team", "alice", "/", "home"),
    Page("home-approver", "approver", "/", "home"),
    Page("request-new", "bob", "/requests/new/", "request_new"),
    Page("request-new-quoted", "bob", "/requests/new/", "request_new", act=_chosen),
    Page("request-new-refused", "bob", "/requests/new/", "request_new", act=_refused, expect="422"),
    Page("requests", "bob", "/requests/", "requests"),
    Page("forecasts", "charlie", "/forecasts/", "forecasts"),
    Page("demand", "operator", "/forecasts/demand/", "load"),
    Page("demand-team", "charlie", "/forecasts/demand/", "load"),
    Page("requests-none", "bob", "/requests/?q=nothing-like-it", "requests"),
    Page("request-waiting", "charlie", first("/requests/?state=queued", REQUEST), "request"),
    Page("request-approval", "bob", first("/requests/?state=awaiting_approval", REQUEST), "request"),
    Page(
        "request-fulfilled", "bob", first("/requests/?state=fulfilled", REQUEST, "?show=request"), "request"
    ),
    Page("leases", "bob", "/leases/", "leases"),
    Page("lease-active", "bob", first("/leases/?whose=mine&state=active", LEASE), "lease"),
    Page(
        "lease-extend",
        "bob",
        first("/leases/?whose=mine&state=active", LEASE),
        "lease",
        act=_dialog("extend"),
    ),
    Page(
        "lease-release",
        "bob",
        first("/leases/?whose=mine&state=active", LEASE),
        "lease",
        act=_dialog("release"),
    ),
    Page(
        "terminal",
        "bob",
        first("/leases/?whose=mine&state=active", LEASE, "terminal/"),
        "lease_terminal",
        act=_connected,
    ),
    Page(
        "app-open",
        "bob",
        first("/leases/?whose=mine&state=active", LEASE, "apps/jupyterlab/"),
        "lease_app",
    ),
    Page("lease-ended", "bob", first("/leases/?whose=mine&state=ended", LEASE), "lease"),
    Page("jobs", "bob", "/jobs/", "jobs"),
    Page("job", "bob", "/jobs/", "job", act=_job_run),
    Page("approvals", "approver", "/approvals/", "approvals"),
    Page("notifications", "bob", "/notifications/", "notifications"),
    Page("cluster", "bob", "/cluster/", "cluster"),
    Page("cluster-operator", "operator", "/cluster/", "cluster"),
    Page("node", "bob", "/cluster/gpu-02/", "node"),
    Page("node-operator", "operator", "/cluster/gpu-02/", "node"),
    Page("node-drain", "operator", "/operations/nodes/gpu-02/drain/", "node_drain"),
    Page("node-cordon", "operator", "/cluster/gpu-02/", "node", act=_dialog("cordon")),
    Page("calendar", "bob", "/calendar/", "calendar"),
    Page("calendar-day", "operator", "/calendar/?view=day", "calendar"),
    Page("reservations", "bob", "/reservations/", "reservations"),
    Page("reservation", "bob", first("/reservations/", r"/reservations/rsv-[^/\"]+/"), "reservation"),
    Page("workshops", "bob", "/workshops/", "workshops"),
    Page("workshop-new", "alice", "/workshops/new/", "workshop_new"),
    Page("workshop-preview", "alice", "/workshops/new/", "workshop_new", _workshop_previewed),
    Page("workshop", "alice", first("/workshops/", WORKSHOP), "workshop"),
    Page("workshop-seat", "bob", first("/workshops/", WORKSHOP), "workshop"),
    Page("announcements", "operator", "/operations/announcements/", "announcements"),
    Page("maintenance", "operator", "/operations/maintenance/", "maintenance"),
    Page(
        "window",
        "operator",
        first("/operations/maintenance/", r"/operations/maintenance/mnt-[^/\"]+/"),
        "window",
    ),
    Page("teams", "alice", "/teams/", "teams"),
    Page("team", "alice", "/teams/vision/", "team"),
    Page("team-quota", "alice", "/teams/perception/quota/", "team_quota"),
    Page("team-budget", "alice", "/teams/perception/budget/", "team_budget"),
    Page("team-budget-new", "alice", "/teams/perception/budget/new/", "team_budget_new"),
    Page(
        "team-budget-change",
        "finance",
        first("/teams/vision/budget/", r"/teams/vision/budget/\d+/"),
        "team_budget_change",
    ),
    Page("team-wallet", "finance", "/teams/robotics/wallet/", "team_wallet"),
    Page("wallets", "finance", "/finance/wallets/", "wallets"),
    Page("team-new", "alice", "/teams/vision/new/", "team_new"),
    Page("team-templates", "alice", "/teams/perception/templates/", "team_templates"),
    Page("team-settings", "alice", "/teams/perception/settings/", "team_settings"),
    Page("team-images", "alice", "/teams/perception/images/", "team_images"),
    Page("requests-bulk", "bob", "/requests/bulk/", "requests_bulk"),
    Page("people", "operator", "/operations/people/", "people"),
    Page("person", "operator", "/operations/people/bob/", "person"),
    Page("see-as", "operator", "/operations/see-as/", "see_as"),
    Page("deputies", "alice", "/approvals/deputies/", "deputies"),
    Page("team-invitations", "alice", "/teams/perception/invitations/", "team_invitations"),
    Page("person-new", "alice", "/teams/perception/people/new/", "person_new"),
    Page("setup", "operator", "/setup/", "setup"),
    Page("flavors", "operator", "/operations/flavors/", "flavors"),
    Page("flavor", "operator", "/operations/flavors/h100-1g/", "flavor"),
    Page("capacity-now", "operator", "/finance/capacity/", "capacity_now"),
    Page(
        "cluster-usage",
        "finance",
        first("/finance/months/", r"/finance/months/[\d-]+/", "cluster-usage/"),
        "cluster_usage",
    ),
    Page(
        "capacity", "finance", first("/finance/months/", r"/finance/months/[\d-]+/", "capacity/"), "capacity"
    ),
    Page(
        "capacity-device",
        "finance",
        first("/finance/capacity/?node=gpu-01", r"/finance/months/[\d-]+/capacity/[\w-]+/"),
        "capacity_device",
    ),
    Page("invoices", "finance", "/invoices/", "invoices"),
    Page("reports", "finance", "/reports/", "reports"),
    Page("invoice", "finance", first("/invoices/", r"/invoices/vision/[\d-]+/"), "invoice"),
    Page("invoice-team", "bob", first("/invoices/", r"/invoices/perception/[\d-]+/"), "invoice"),
    Page("invoice-line", "finance", lambda visitor: visitor.link(_past(visitor), LINE), "invoice_line"),
    Page("tokens", "bob", "/tokens/", "tokens"),
    Page("contact-points", "bob", "/contact-points/", "contact_points"),
    Page("contact-point", "bob", "/contact-points/", "contact_point", act=_contact_added),
    Page("ssh-keys", "bob", "/ssh-keys/", "ssh_keys"),
    Page("token-made", "alice", "/tokens/", "tokens", act=_token_made),
    Page("profile", "bob", "/profile/", "profile"),
    Page("sessions", "bob", "/sessions/", "sessions"),
    Page("device", "bob", "/device/", "device"),
    Page("device-unknown", "alice", "/device/?code=BBBB-BBBB", "device", status=404),
    Page("second-factor", "bob", "/second-factor/", "second_factor"),
    Page("second-factor-rules", "operator", "/operations/second-factor/", "second_factor_rules"),
    Page("password-refused", "alice", "/sessions/", "sessions", act=_password_refused, expect="422"),
    Page("alerts", "operator", "/alerts/", "alerts"),
    Page("alerts-of-teams", "alice", "/alerts/", "alerts"),
    Page("alert-rule", "operator", first("/alerts/", r"/alerts/rules/\d+/"), "alert_rule"),
    Page("alert-rule-new", "operator", "/alerts/rules/new/", "alert_rule_new"),
    Page("idle", "operator", "/idle/", "idle"),
    Page("discounts", "finance", "/finance/discounts/", "discounts"),
    Page("mailings", "finance", "/finance/mailings/", "mailings", act=_mailing_added),
    Page("mailing", "finance", first("/finance/mailings/", r"/finance/mailings/\d+/"), "mailing"),
    Page("energy", "finance", "/reports/energy/", "energy"),
    Page("energy-factors", "finance", "/finance/energy-factors/", "energy_factors"),
    Page("imports", "finance", "/finance/imports/", "imports", act=_opening_imported),
    Page("import", "finance", first("/finance/imports/", r"/finance/imports/imp-[0-9a-z]+/"), "import"),
    Page(
        "import-balances",
        "finance",
        "/finance/imports/balances/",
        "import_balances",
        act=_opening_previewed,
        expect="422",
    ),
    Page(
        "import-usage",
        "finance",
        "/finance/imports/usage/",
        "import_usage",
        act=_usage_previewed,
        expect="422",
    ),
    Page("waste", "finance", "/reports/waste/", "waste"),
    Page("projects", "finance", "/finance/projects/", "projects", act=_project_added),
    Page("project", "finance", first("/finance/projects/", r"/finance/projects/[^/\"]+/"), "project"),
    Page("team-labels", "finance", "/teams/perception/labels/", "team_labels"),
    Page("request-labels", "bob", first("/requests/", REQUEST, "labels/"), "request_labels"),
    Page("refunds", "finance", "/finance/refunds/", "refunds"),
    Page("notes", "finance", "/finance/notes/", "notes"),
    Page("note", "finance", first("/finance/notes/", r"/finance/notes/nte-[^/\"]+/"), "note"),
    Page("note-new", "finance", lambda visitor: visitor.link(_past(visitor), LINE) + "correct/", "note_new"),
    Page("months", "finance", "/finance/months/", "periods"),
    Page(
        "rehearsal",
        "finance",
        first("/finance/months/", r"/finance/months/[\d-]+/", "rehearsal/"),
        "rehearsal",
    ),
    Page("month", "finance", first("/finance/months/", r"/finance/months/[\d-]+/"), "period"),
    Page("prices", "finance", "/finance/prices/", "rates"),
    Page("nodes", "operator", "/operations/nodes/", "nodes"),
    Page("node-enrolled", "operator", "/operations/nodes/", "node_enrol", act=_enrolled),
    Page("policies", "operator", "/operations/policies/", "policies"),
    Page("policy", "operator", "/operations/policies/2/", "policy"),
    Page("policy-edit", "operator", "/operations/policies/edit/", "policy_edit"),
    Page("policy-edit-row", "operator", "/operations/policies/edit/", "policy_edit", act=_row_added),
    Page(
        "policy-refused",
        "operator",
        "/operations/policies/edit/",
        "policy_edit",
        act=_rules_refused,
        expect="422",
    ),
    Page("policy-review", "operator", "/operations/policies/edit/", "policy_save", act=_tried),
    Page("policy-confirm", "operator", "/operations/policies/1/confirm/", "policy_confirm"),
    Page("policy-json", "operator", "/operations/policies/json/", "policy_json"),
    Page("policy-compare", "operator", "/operations/policies/compare/?a=1&b=2", "policy_compare"),
    Page("cycles", "operator", "/operations/cycles/", "cycles"),
    Page("lab", "operator", "/operations/lab/", "lab"),
    Page("lab-run", "operator", "/operations/lab/", "lab_run", act=_lab_run),
    Page("cohorts", "operator", "/operations/cohorts/", "cohorts"),
    Page("team-priority", "operator", "/teams/speech/", "team", act=_priority_opened),
    Page("sso", "operator", "/operations/single-sign-on/", "single_sign_on"),
    Page("sso-new", "operator", "/operations/single-sign-on/new/", "single_sign_on_new"),
    Page(
        "sso-change", "operator", "/operations/single-sign-on/", "single_sign_on_change", act=_provider_added
    ),
    Page("audit", "operator", "/operations/audit/", "audit"),
    Page("design", "bob", "/design/", "design"),
    Page("not-found", "bob", "/leases/lse-0000000000000000/", "lease", status=404),
    Page("forbidden", "bob", "/operations/nodes/", "nodes", status=403),
)
