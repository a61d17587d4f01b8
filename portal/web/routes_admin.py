"""Addresses of the pages for teams, finance and operators."""

from __future__ import annotations

from django.urls import path

from portal.web import (
    announcements,
    capacity,
    cohorts,
    cycles,
    discounts,
    energy,
    flavors,
    impersonation,
    labels,
    mailings,
    maintenance,
    people,
    profile,
    refunds,
    sessions,
    setup,
    wallets,
    waste,
)
from portal.web.alerts import page as alerts
from portal.web.audit import page as audit
from portal.web.budgets import page as budgets
from portal.web.cluster import page as cluster
from portal.web.contact_points import page as contact_points
from portal.web.idle import page as idle
from portal.web.imports import page as imports
from portal.web.invoices import notes
from portal.web.invoices import page as invoices
from portal.web.invoices import periods as invoices_periods
from portal.web.lab import page as lab
from portal.web.nodes import actions as node_actions
from portal.web.nodes import health_actions as health
from portal.web.nodes import lifecycle_actions as node_lifecycle
from portal.web.policies import page as policies
from portal.web.power import actions as power
from portal.web.rates import page as rates
from portal.web.reports import page as reports
from portal.web.requests import templates
from portal.web.second_factor import page as second_factor
from portal.web.second_factor import passkeys
from portal.web.single_sign_on import page as single_sign_on
from portal.web.ssh_keys import page as ssh_keys
from portal.web.teams import images as teams_images
from portal.web.teams import invitations as teams_invitations
from portal.web.teams import page as teams
from portal.web.teams import quota as teams_quota
from portal.web.teams import settings as teams_settings
from portal.web.tokens import page as tokens

urlpatterns = [
    path("cluster/", cluster.page, name="cluster"),
    path("cluster/<slug:name>/", cluster.node, name="node"),
    path("teams/", teams.page, name="teams"),
    path("teams/<slug:slug>/", teams.team, name="team"),
    path("teams/<slug:slug>/new/", teams_settings.new, name="team_new"),
    path("teams/<slug:slug>/settings/", teams_settings.settings, name="team_settings"),
    path("teams/<slug:slug>/people/new/", teams_settings.person, name="person_new"),
    path("teams/<slug:slug>/people/link/", teams_settings.again, name="person_link"),
    path("teams/<slug:slug>/invitations/", teams_invitations.page, name="team_invitations"),
    path(
        "teams/<slug:slug>/invitations/<int:key>/revoke/",
        teams_invitations.revoke,
        name="team_invitation_revoke",
    ),
    path("invitations/<str:secret>/", teams_invitations.answer, name="invitation"),
    path("teams/<slug:slug>/templates/", templates.page, name="team_templates"),
    path("teams/<slug:slug>/templates/<str:uid>/remove/", templates.remove, name="template_remove"),
    path("teams/<slug:slug>/images/", teams_images.images, name="team_images"),
    path("teams/<slug:slug>/quota/", teams_quota.quota, name="team_quota"),
    path("teams/<slug:slug>/budget/", budgets.page, name="team_budget"),
    path("teams/<slug:slug>/budget/new/", budgets.new, name="team_budget_new"),
    path("teams/<slug:slug>/budget/<int:key>/", budgets.change, name="team_budget_change"),
    path("teams/<slug:slug>/budget/<int:key>/end/", budgets.end, name="team_budget_end"),
    path("teams/<slug:slug>/wallet/", wallets.team_page, name="team_wallet"),
    path("teams/<slug:slug>/wallet/move/", wallets.move, name="team_wallet_move"),
    path("teams/<slug:slug>/wallet/set/", wallets.set_up, name="team_wallet_set"),
    path("teams/<slug:slug>/wallet/close/", wallets.close, name="team_wallet_close"),
    path("teams/<slug:slug>/wallet/csv/", wallets.download, name="team_wallet_csv"),
    path("teams/<slug:slug>/priority/", teams_quota.give, name="priority_give"),
    path("teams/<slug:slug>/priority/<int:key>/revoke/", teams_quota.revoke, name="priority_revoke"),
    path("teams/<slug:slug>/members/", teams.add_member, name="member_add"),
    path("teams/<slug:slug>/members/<int:key>/remove/", teams.remove_member, name="member_remove"),
    path("invoices/", invoices.page, name="invoices"),
    path("invoices/<slug:slug>/<str:month>/", invoices.invoice, name="invoice"),
    path("invoices/<slug:slug>/<str:month>/lines.csv", invoices.download, name="invoice_csv"),
    path("invoices/<slug:slug>/<str:month>/invoice.pdf", reports.invoice_pdf, name="invoice_pdf"),
    path("invoices/<slug:slug>/<str:month>/lines/<str:key>/", invoices.line, name="invoice_line"),
    path("reports/", reports.page, name="reports"),
    path("reports/energy/", energy.page, name="energy"),
    path("reports/waste/", waste.page, name="waste"),
    path("reports/<str:month>/<str:kind>", reports.download, name="report_file"),
    path("profile/", profile.page, name="profile"),
    path("ssh-keys/", ssh_keys.page, name="ssh_keys"),
    path("ssh-keys/<int:key>/remove/", ssh_keys.remove, name="ssh_key_remove"),
    path("contact-points/", contact_points.page, name="contact_points"),
    path("contact-points/<int:key>/", contact_points.contact_point, name="contact_point"),
    path("contact-points/<int:key>/test/", contact_points.try_out, name="contact_point_test"),
    path("contact-points/<int:key>/remove/", contact_points.remove, name="contact_point_remove"),
    path("contact-points/confirm/<str:signed>/", contact_points.confirm, name="contact_point_confirm"),
    path("tokens/", tokens.page, name="tokens"),
    path("tokens/<int:key>/revoke/", tokens.revoke, name="token_revoke"),
    path("sessions/", sessions.page, name="sessions"),
    path("sessions/end-others/", sessions.end_others, name="sessions_end_others"),
    path("sessions/<slug:uid>/end/", sessions.end, name="session_end"),
    path("password/", sessions.password, name="password"),
    path("second-factor/", second_factor.page, name="second_factor"),
    path("second-factor/begin/", second_factor.begin, name="second_factor_begin"),
    path("second-factor/confirm/", second_factor.confirm, name="second_factor_confirm"),
    path("second-factor/codes/", second_factor.codes, name="second_factor_codes"),
    path("second-factor/off/", second_factor.off, name="second_factor_off"),
    path("second-factor/passkeys/begin/", passkeys.begin, name="passkey_begin"),
    path("second-factor/passkeys/add/", passkeys.add, name="passkey_add"),
    path("second-factor/passkeys/<int:key>/remove/", passkeys.remove, name="passkey_remove"),
    path("operations/second-factor/", second_factor.rules, name="second_factor_rules"),
    path("operations/second-factor/reset/", second_factor.reset, name="second_factor_reset"),
    path("operations/single-sign-on/", single_sign_on.page, name="single_sign_on"),
    path("operations/single-sign-on/new/", single_sign_on.new, name="single_sign_on_new"),
    path("operations/single-sign-on/<slug:slug>/", single_sign_on.change, name="single_sign_on_change"),
    path(
        "operations/single-sign-on/<slug:slug>/remove/", single_sign_on.remove, name="single_sign_on_remove"
    ),
    path("invoices/<slug:slug>/<str:month>/lines/<str:key>/correct/", notes.new, name="note_new"),
    path("finance/notes/", notes.page, name="notes"),
    path("finance/notes/<str:uid>/", notes.note, name="note"),
    path("finance/notes/<str:uid>/decide/", notes.decide, name="note_decide"),
    path("finance/notes/<str:uid>/withdraw/", notes.withdraw, name="note_withdraw"),
    path("finance/months/", invoices_periods.page, name="periods"),
    path("finance/zone/", invoices_periods.zone, name="month_zone"),
    path("finance/months/<str:month>/", invoices_periods.period, name="period"),
    path("finance/months/<str:month>/rehearsal/", invoices_periods.rehearsal, name="rehearsal"),
    path("finance/wallets/", wallets.page, name="wallets"),
    path("finance/imports/", imports.page, name="imports"),
    path("finance/imports/balances/", imports.balances, name="import_balances"),
    path("finance/imports/usage/", imports.usage, name="import_usage"),
    path("finance/imports/<str:uid>/", imports.one, name="import"),
    path("finance/imports/<str:uid>/undo/", imports.undo, name="import_undo"),
    path("finance/capacity/", capacity.page, name="capacity_now"),
    path("finance/months/<str:month>/capacity/", capacity.page, name="capacity"),
    path("finance/months/<str:month>/capacity/<str:uuid>/", capacity.device, name="capacity_device"),
    path("finance/months/<str:month>/close/", invoices_periods.close, name="period_close"),
    path("finance/prices/", rates.page, name="rates"),
    path("finance/prices/<int:key>/move/", rates.move, name="rate_move"),
    path("finance/prices/<int:key>/withdraw/", rates.withdraw, name="rate_withdraw"),
    path("finance/energy-factors/", energy.factor_page, name="energy_factors"),
    path("finance/energy-factors/import/", energy.factor_import, name="energy_factor_import"),
    path("finance/energy-factors/<int:key>/end/", energy.factor_end, name="energy_factor_end"),
    path("finance/discounts/", discounts.page, name="discounts"),
    path("finance/discounts/<int:key>/end/", discounts.end, name="discount_end"),
    path("finance/projects/", labels.projects, name="projects"),
    path("finance/projects/<str:code>/", labels.project, name="project"),
    path("teams/<slug:slug>/labels/", labels.team, name="team_labels"),
    path("finance/mailings/", mailings.page, name="mailings"),
    path("finance/mailings/<int:key>/", mailings.mailing, name="mailing"),
    path("finance/mailings/<int:key>/send/", mailings.send, name="mailing_send"),
    path("finance/mailings/<int:key>/remove/", mailings.remove, name="mailing_remove"),
    path("finance/refunds/", refunds.page, name="refunds"),
    path("finance/refunds/<int:key>/withdraw/", refunds.withdraw, name="refund_withdraw"),
    path("finance/currency/", rates.currency, name="currency"),
    path("operations/flavors/", flavors.page, name="flavors"),
    path("operations/flavors/<slug:slug>/", flavors.flavor, name="flavor"),
    path("operations/models/<slug:slug>/flavors/", flavors.standard, name="flavors_standard"),
    path("setup/", setup.page, name="setup"),
    path("operations/nodes/", node_actions.nodes, name="nodes"),
    path("operations/nodes/enrol/", node_actions.enrol, name="node_enrol"),
    path("operations/nodes/<slug:name>/cordon/", node_actions.cordon, name="node_cordon"),
    path("operations/nodes/<slug:name>/uncordon/", node_actions.uncordon, name="node_uncordon"),
    path("operations/nodes/<slug:name>/drain/", node_lifecycle.drain, name="node_drain"),
    path("operations/nodes/<slug:name>/accept/", node_lifecycle.accept, name="node_accept"),
    path("operations/nodes/<slug:name>/rotate/", node_lifecycle.rotate, name="node_rotate"),
    path("operations/nodes/<slug:name>/revoke/", node_actions.revoke, name="node_revoke"),
    path("operations/nodes/<slug:name>/wake/", power.wake, name="node_wake"),
    path("operations/nodes/<slug:name>/sleep/", power.let_sleep, name="node_sleep"),
    path("operations/nodes/<slug:name>/quarantine/", health.put_in_quarantine, name="node_quarantine"),
    path("operations/nodes/<slug:name>/clear/", health.clear_node, name="node_health_clear"),
    path("operations/devices/<str:uuid>/clear/", health.clear, name="device_clear"),
    path("announcements/now/", announcements.current, name="announcements_now"),
    path("announcements/<str:uid>/dismiss/", announcements.dismiss, name="announcement_dismiss"),
    path("operations/announcements/", announcements.page, name="announcements"),
    path(
        "operations/announcements/<str:uid>/withdraw/", announcements.withdraw, name="announcement_withdraw"
    ),
    path("operations/policies/", policies.page, name="policies"),
    path("operations/policies/edit/", policies.edit, name="policy_edit"),
    path("operations/policies/json/", policies.edit_json, name="policy_json"),
    path("operations/policies/save/", policies.save, name="policy_save"),
    path("operations/policies/compare/", policies.compare, name="policy_compare"),
    path("operations/policies/<int:number>/", policies.version, name="policy"),
    path("operations/policies/<int:number>/confirm/", policies.confirm, name="policy_confirm"),
    path("operations/policies/<int:number>/activate/", policies.put_in_force, name="policy_activate"),
    path("operations/policies/<int:number>/roll-back/", policies.back, name="policy_roll_back"),
    path("alerts/", alerts.page, name="alerts"),
    path("alerts/silence/", alerts.make_silence, name="silence_make"),
    path("alerts/silences/<str:uid>/end/", alerts.stop_silence, name="silence_end"),
    path("alerts/rules/new/", alerts.new_rule, name="alert_rule_new"),
    path("alerts/rules/<int:key>/", alerts.edit_rule, name="alert_rule"),
    path("alerts/rules/<int:key>/switch/", alerts.turn_rule, name="alert_rule_switch"),
    path("alerts/rules/<int:key>/remove/", alerts.drop_rule, name="alert_rule_remove"),
    path("alerts/<str:uid>/resume/", alerts.resume_starts, name="alert_resume"),
    path("alerts/<str:uid>/acknowledge/", alerts.take, name="alert_acknowledge"),
    path("idle/", idle.page, name="idle"),
    path("idle/rules/<int:key>/remove/", idle.remove, name="idle_rule_remove"),
    path("leases/<str:uid>/idle/snooze/", idle.put_off, name="idle_snooze"),
    path("operations/lab/", lab.page, name="lab"),
    path("operations/lab/<str:uid>/", lab.run_page, name="lab_run"),
    path("operations/lab/<str:uid>/stop/", lab.stop, name="lab_stop"),
    path("operations/lab/<str:uid>/trace.csv", lab.trace, name="lab_trace"),
    path("operations/cycles/", cycles.page, name="cycles"),
    path("operations/cohorts/", cohorts.page, name="cohorts"),
    path("operations/cohorts/<int:key>/rename/", cohorts.rename, name="cohort_rename"),
    path("operations/cohorts/<int:key>/remove/", cohorts.remove, name="cohort_remove"),
    path("operations/maintenance/", maintenance.page, name="maintenance"),
    path("operations/maintenance/<str:uid>/", maintenance.window, name="window"),
    path("operations/maintenance/<str:uid>/change/", maintenance.change, name="window_change"),
    path("operations/maintenance/<str:uid>/cancel/", maintenance.cancel, name="window_cancel"),
    path("operations/people/", people.page, name="people"),
    path("operations/people/<str:username>/", people.person_page, name="person"),
    path("operations/people/<str:username>/close/", people.close, name="person_close"),
    path("operations/people/<str:username>/reopen/", people.reopen, name="person_reopen"),
    path("operations/see-as/", impersonation.page, name="see_as"),
    path("operations/see-as/end/", impersonation.end, name="see_as_end"),
    path("operations/audit/", audit.page, name="audit"),
]
