"""Every address under ``/api/``."""

from __future__ import annotations

from django.contrib.auth.decorators import login_not_required
from django.urls import URLPattern, URLResolver, include, path, re_path, register_converter
from django.urls.converters import IntConverter
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerView

from portal.api import (
    accounting,
    calendar,
    catalog,
    cycles,
    fair_share,
    fallback,
    fleet,
    forecasts,
    health,
    invoices,
    jobs,
    lease_apps,
    leases,
    lifecycle,
    maintenance,
    people,
    policies,
    power,
    quotas,
    requests,
    reservations,
    sessions,
    setup,
    teams,
    terminals,
)


class ShortNumber(IntConverter):
    """A number that fits into a key of the database; a longer one is no address at all."""

    regex = "[0-9]{1,18}"


register_converter(ShortNumber, "short_number")
app_name = "api"
v1: list[URLPattern | URLResolver] = [
    path("me/", teams.MeEndpoint.as_view(), name="me"),
    path("teams/", teams.Teams.as_view(), name="teams"),
    path("teams/<str:slug>/", teams.OneTeam.as_view(), name="team"),
    path("teams/<str:slug>/members/", teams.Members.as_view(), name="members"),
    path("teams/<str:slug>/members/<str:username>/<str:role>/", teams.OneMember.as_view(), name="member"),
    path("teams/<str:slug>/quota/", teams.OneQuota.as_view(), name="quota"),
    path("teams/<str:slug>/priority/", quotas.PriorityGrants.as_view(), name="priority-grants"),
    path(
        "teams/<str:slug>/priority/<short_number:key>/revoke/",
        quotas.RevokePriority.as_view(),
        name="revoke-priority",
    ),
    path("teams/<str:slug>/people/", teams.NewPeople.as_view(), name="new-people"),
    path("people/<str:username>/invitation/", teams.Invitations.as_view(), name="invitation"),
    path("setup/steps/", setup.Steps.as_view(), name="setup-steps"),
    path("cohorts/", quotas.Cohorts.as_view(), name="cohorts"),
    path("cohorts/<short_number:key>/", quotas.OneCohort.as_view(), name="cohort"),
    path("policies/", policies.Policies.as_view(), name="policies"),
    path("policies/check/", policies.Check.as_view(), name="check-policy"),
    path("policies/<short_number:version>/", policies.OnePolicy.as_view(), name="policy"),
    path("policies/<short_number:version>/activate/", policies.Activate.as_view(), name="activate-policy"),
    path("policies/<short_number:version>/roll-back/", policies.RollBack.as_view(), name="roll-back-policy"),
    path(
        "policies/<short_number:version>/diff/<short_number:other>/",
        policies.Diff.as_view(),
        name="compare-policies",
    ),
    path("cycles/", cycles.Cycles.as_view(), name="cycles"),
    path("teams/<str:slug>/spend/", teams.SpendEndpoint.as_view(), name="spend"),
    path("teams/<str:slug>/standing/", fair_share.TeamFairShareEndpoint.as_view(), name="standing"),
    path("flavors/", catalog.Flavors.as_view(), name="flavors"),
    path("models/<str:slug>/flavors/", catalog.StandardFlavors.as_view(), name="standard-flavors"),
    path("currency/", catalog.Currency.as_view(), name="currency"),
    path("flavors/<str:slug>/", catalog.OneFlavor.as_view(), name="flavor"),
    path("quote/", catalog.QuoteEndpoint.as_view(), name="quote"),
    path("forecasts/calibration/", forecasts.CalibrationEndpoint.as_view(), name="calibration"),
    path("rates/", catalog.Rates.as_view(), name="rates"),
    path("requests/", requests.Requests.as_view(), name="requests"),
    path("requests/<str:uid>/", requests.OneRequest.as_view(), name="request"),
    path("requests/<str:uid>/events/", requests.RequestEvents.as_view(), name="request-events"),
    path("requests/<str:uid>/growth/", requests.Growth.as_view(), name="growth"),
    path("requests/<str:uid>/withdraw/", requests.Withdraw.as_view(), name="withdraw"),
    path("requests/<str:uid>/approve/", requests.Approve.as_view(), name="approve"),
    path("requests/<str:uid>/reject/", requests.Reject.as_view(), name="reject"),
    path("jobs/", jobs.JobsEndpoint.as_view(), name="jobs"),
    path("jobs/<str:uid>/", jobs.OneJob.as_view(), name="job"),
    path("jobs/<str:uid>/cancel/", jobs.CancelJob.as_view(), name="cancel-job"),
    path("jobs/<str:uid>/retry/", jobs.RetryJob.as_view(), name="retry-job"),
    path("secrets/", jobs.Secrets.as_view(), name="secrets"),
    path("secrets/<str:name>/", jobs.OneSecret.as_view(), name="secret"),
    path("leases/", leases.Leases.as_view(), name="leases"),
    path("leases/<str:uid>/", leases.OneLease.as_view(), name="lease"),
    path("leases/<str:uid>/extend/", leases.Extend.as_view(), name="extend"),
    path("leases/<str:uid>/extension/approve/", leases.ApproveExtension.as_view(), name="approve-extension"),
    path("leases/<str:uid>/extension/reject/", leases.RejectExtension.as_view(), name="reject-extension"),
    path(
        "leases/<str:uid>/extension/withdraw/", leases.WithdrawExtension.as_view(), name="withdraw-extension"
    ),
    path("leases/<str:uid>/release/", leases.Release.as_view(), name="release"),
    path("leases/<str:uid>/events/", leases.LeaseSteps.as_view(), name="lease-steps"),
    path("leases/<str:uid>/terminal/", terminals.TerminalTicket.as_view(), name="terminal"),
    path("leases/<str:uid>/apps/", lease_apps.LeaseApps.as_view(), name="lease-apps"),
    path("leases/<str:uid>/apps/<str:name>/", lease_apps.AppEntrance.as_view(), name="lease-app"),
    path("leases/<str:uid>/access/", leases.LeaseAccess.as_view(), name="access"),
    path("leases/<str:uid>/usage/", leases.LeaseUsage.as_view(), name="lease-usage"),
    path("leases/<str:uid>/sample/", leases.LeaseSample.as_view(), name="sample"),
    path("lease-events/", leases.LeaseEvents.as_view(), name="lease-events"),
    path("calendar/", calendar.CalendarEndpoint.as_view(), name="calendar"),
    path("calendar/mine.ics/", calendar.MyCalendar.as_view(), name="my-calendar"),
    path("reservations/", reservations.Reservations.as_view(), name="reservations"),
    path("reservations/<str:uid>/", reservations.OneReservation.as_view(), name="reservation"),
    path(
        "reservations/<str:uid>/approve/",
        reservations.ApproveReservation.as_view(),
        name="approve-reservation",
    ),
    path(
        "reservations/<str:uid>/reject/", reservations.RejectReservation.as_view(), name="reject-reservation"
    ),
    path(
        "reservations/<str:uid>/cancel/", reservations.CancelReservation.as_view(), name="cancel-reservation"
    ),
    path("maintenance/", maintenance.Windows.as_view(), name="maintenance"),
    path("maintenance/preview/", maintenance.PreviewEndpoint.as_view(), name="preview-maintenance"),
    path("maintenance/<str:uid>/", maintenance.OneWindow.as_view(), name="window"),
    path("maintenance/<str:uid>/change/", maintenance.ChangeWindow.as_view(), name="change-window"),
    path("maintenance/<str:uid>/cancel/", maintenance.CancelWindow.as_view(), name="cancel-window"),
    path("nodes/", fleet.Nodes.as_view(), name="nodes"),
    path("nodes/<str:name>/", fleet.OneNode.as_view(), name="node"),
    path("nodes/<str:name>/cordon/", fleet.Cordon.as_view(), name="cordon"),
    path("nodes/<str:name>/uncordon/", fleet.Uncordon.as_view(), name="uncordon"),
    path("nodes/<str:name>/drain/", lifecycle.Drain.as_view(), name="drain"),
    path("nodes/<str:name>/drain/preview/", lifecycle.DrainPreview.as_view(), name="preview-drain"),
    path("nodes/<str:name>/undrain/", lifecycle.Undrain.as_view(), name="undrain"),
    path("nodes/<str:name>/acceptance/", lifecycle.Acceptance.as_view(), name="node-acceptance"),
    path("nodes/<str:name>/accept/", lifecycle.Accept.as_view(), name="accept-node"),
    path("nodes/<str:name>/life/", lifecycle.NodeLifecycleEndpoint.as_view(), name="node-life"),
    path("nodes/<str:name>/rotate-key/", lifecycle.RotateKey.as_view(), name="rotate-key"),
    path("nodes/<str:name>/revoke/", fleet.Revoke.as_view(), name="revoke"),
    path("nodes/<str:name>/power/", power.NodePowerEndpoint.as_view(), name="node-power"),
    path("nodes/<str:name>/wake/", power.Wake.as_view(), name="node-wake"),
    path("nodes/<str:name>/sleep/", power.LetSleep.as_view(), name="node-sleep"),
    path("devices/", fleet.Devices.as_view(), name="devices"),
    path("nodes/<str:name>/processes/", health.Processes.as_view(), name="node-processes"),
    path("nodes/<str:name>/clear-health/", health.ClearNodeHealth.as_view(), name="clear-node-health"),
    path("devices/<str:uuid>/clear-health/", health.ClearHealth.as_view(), name="clear-health"),
    path("devices/<str:uuid>/quarantine/", health.Quarantine.as_view(), name="quarantine"),
    path("map/", fleet.Map.as_view(), name="map"),
    path("invoices/", invoices.Invoices.as_view(), name="invoices"),
    path("invoices/<str:slug>/<str:month>/", invoices.OneInvoice.as_view(), name="invoice"),
    path("invoices/<str:slug>/<str:month>/csv/", invoices.InvoiceCsv.as_view(), name="invoice-csv"),
    path(
        "invoices/<str:slug>/<str:month>/lines/<str:key>/usage/",
        invoices.InvoiceLineUsage.as_view(),
        name="line-usage",
    ),
    path("usage/", invoices.UsageEndpoint.as_view(), name="usage"),
    path("periods/", invoices.Periods.as_view(), name="periods"),
    path("periods/<str:month>/", invoices.OnePeriod.as_view(), name="period"),
    path("periods/<str:month>/close/", invoices.ClosePeriod.as_view(), name="close-period"),
    path("tokens/", people.Tokens.as_view(), name="tokens"),
    path("tokens/<short_number:key>/", people.OneToken.as_view(), name="token"),
    path("sessions/", sessions.Sessions.as_view(), name="sessions"),
    path("sessions/<str:uid>/", sessions.OneSession.as_view(), name="session"),
    path("password/", sessions.Password.as_view(), name="password"),
    path("notifications/", people.Notifications.as_view(), name="notifications"),
    path("notifications/read/", people.MarkRead.as_view(), name="mark-read"),
    path("audit/", people.Audit.as_view(), name="audit"),
    path("fleet/accounting/", accounting.Accounting.as_view(), name="accounting"),
    path("fleet/energy/", power.Energy.as_view(), name="energy"),
    path("fleet/invariants/", accounting.Invariants.as_view(), name="invariants"),
    path("fleet/overlaps/", accounting.Overlaps.as_view(), name="overlaps"),
]

urlpatterns: list[URLPattern | URLResolver] = [
    path("schema/", login_not_required(SpectacularAPIView.as_view()), name="schema"),
    path("docs/", login_not_required(SpectacularSwaggerView.as_view(url_name="api:schema")), name="docs"),
    # The one call without a token: before it there is nobody who could have one.
    path("v1/setup/", setup.SetUp.as_view(), name="setup"),
    path("v1/", include(v1)),
    re_path(r"^.*$", fallback.UnknownAddress.as_view(), name="nothing"),
]
