"""Addresses of the pages for everybody who asks for GPU time, and of signing in."""

from __future__ import annotations

from django.urls import path

from portal.web import (
    advice,
    auth,
    deputies,
    design,
    forecasts,
    invitation,
    labels,
    lists,
    load,
    reservations,
)
from portal.web.calendar import page as calendar
from portal.web.devices import grant as device_grant
from portal.web.devices import page as devices
from portal.web.home import page as home
from portal.web.jobs import page as jobs
from portal.web.leases import actions as leases_actions
from portal.web.leases import apps as lease_apps
from portal.web.leases import page as leases
from portal.web.leases import terminal as lease_terminal
from portal.web.notifications import page as notifications
from portal.web.requests import approvals as requests_approvals
from portal.web.requests import bulk as requests_bulk
from portal.web.requests import detail as requests_detail
from portal.web.requests import growth as requests_growth
from portal.web.requests import new as requests_new
from portal.web.search import page as search
from portal.web.second_factor import signing_in as second_step
from portal.web.single_sign_on import signing_in as sso
from portal.web.workshops import page as workshops

urlpatterns = [
    path("search/", search.page, name="search"),
    path("", home.page, name="home"),
    path("sign-in/", auth.sign_in, name="sign_in"),
    path("device/", devices.page, name="device"),
    path("oauth/device/", device_grant.authorize, name="oauth_device"),
    path("oauth/token/", device_grant.token, name="oauth_token"),
    path("second-step/", second_step.page, name="second_step"),
    path("sign-in/<slug:slug>/", sso.begin, name="sso_begin"),
    path("sign-in/<slug:slug>/back/", sso.back, name="sso_back"),
    path("sign-in/<slug:slug>/leave/", sso.leave, name="sso_leave"),
    path("join/<str:key>/<str:token>/", invitation.page, name="join"),
    path("sign-out/", auth.sign_out, name="sign_out"),
    path("requests/", lists.requests, name="requests"),
    path("requests/bulk/", requests_bulk.page, name="requests_bulk"),
    path("requests/new/", requests_new.page, name="request_new"),
    path("requests/quote/", requests_new.quote, name="request_quote"),
    path("advice/<slug:slug>/dismiss/", advice.dismiss, name="advice_dismiss"),
    path("advice/<slug:slug>/restore/", advice.restore, name="advice_restore"),
    path("requests/<str:uid>/", requests_detail.page, name="request"),
    path("requests/<str:uid>/labels/", labels.asked, name="request_labels"),
    path("requests/<str:uid>/withdraw/", requests_detail.withdraw, name="request_withdraw"),
    path("requests/<str:uid>/growth/", requests_growth.growth, name="request_growth"),
    path("requests/<str:uid>/decide/", requests_approvals.decide, name="request_decide"),
    path("forecasts/", forecasts.page, name="forecasts"),
    path("forecasts/demand/", load.page, name="load"),
    path("approvals/", requests_approvals.page, name="approvals"),
    path("approvals/deputies/", deputies.page, name="deputies"),
    path("approvals/deputies/<int:key>/end/", deputies.end, name="deputy_end"),
    path("leases/", lists.leases, name="leases"),
    path("leases/<str:uid>/", leases.page, name="lease"),
    path("leases/<str:uid>/terminal/", lease_terminal.terminal, name="lease_terminal"),
    path("leases/<str:uid>/terminal/ticket/", lease_terminal.ticket, name="lease_ticket"),
    path("leases/<str:uid>/terminal/share/", lease_terminal.share, name="terminal_share"),
    path("leases/<str:uid>/terminal/share/<int:key>/end/", lease_terminal.unshare, name="terminal_unshare"),
    path("leases/<str:uid>/watch/", lease_terminal.watch, name="lease_watch"),
    path("leases/<str:uid>/watch/ticket/", lease_terminal.watch_ticket, name="watch_ticket"),
    path("leases/<str:uid>/apps/port/", lease_apps.port, name="lease_port"),
    path("leases/<str:uid>/apps/<str:name>/", lease_apps.app, name="lease_app"),
    path("leases/<str:uid>/processes/", leases.processes, name="lease_processes"),
    path("leases/<str:uid>/extend/", leases_actions.extend, name="lease_extend"),
    path("leases/<str:uid>/extension/withdraw/", leases_actions.withdraw, name="extension_withdraw"),
    path("leases/<str:uid>/extension/decide/", leases_actions.decide, name="extension_decide"),
    path("leases/<str:uid>/release/", leases_actions.release, name="lease_release"),
    path("jobs/", jobs.page, name="jobs"),
    path("jobs/<str:uid>/", jobs.one, name="job"),
    path("jobs/<str:uid>/log/", jobs.log, name="job_log"),
    path("jobs/<str:uid>/log/raw/", jobs.raw, name="job_raw"),
    path("jobs/<str:uid>/artifacts/<int:artifact>/", jobs.artifact, name="job_artifact"),
    path("jobs/<str:uid>/cancel/", jobs.cancel, name="job_cancel"),
    path("jobs/<str:uid>/retry/", jobs.retry, name="job_retry"),
    path("calendar/", calendar.page, name="calendar"),
    path("calendar/mine.ics", calendar.mine, name="calendar_mine"),
    path("reservations/", reservations.page, name="reservations"),
    path("reservations/<str:uid>/", reservations.one, name="reservation"),
    path("reservations/<str:uid>/decide/", reservations.decide, name="reservation_decide"),
    path("reservations/<str:uid>/cancel/", reservations.cancel, name="reservation_cancel"),
    path("workshops/", workshops.page, name="workshops"),
    path("workshops/new/", workshops.new, name="workshop_new"),
    path("workshops/<str:uid>/", workshops.one, name="workshop"),
    path("workshops/<str:uid>/start/", workshops.start, name="workshop_start"),
    path("workshops/<str:uid>/decide/", workshops.decide, name="workshop_decide"),
    path("workshops/<str:uid>/people/", workshops.add, name="workshop_add"),
    path("workshops/<str:uid>/people/remove/", workshops.remove, name="workshop_remove"),
    path("workshops/<str:uid>/again/", workshops.repeat, name="workshop_repeat"),
    path("workshops/<str:uid>/cancel/", workshops.cancel, name="workshop_cancel"),
    path("notifications/", notifications.page, name="notifications"),
    path("notifications/read/", notifications.read, name="notifications_read"),
    path("design/", design.page, name="design"),
]
