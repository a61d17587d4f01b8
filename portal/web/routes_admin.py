"""Addresses of the pages for teams, finance and operators."""

from __future__ import annotations

from django.urls import path

from portal.web import (
    audit,
    cluster,
    cohorts,
    invoices,
    invoices_periods,
    operator,
    policies,
    rates,
    teams,
    teams_quota,
    tokens,
)

urlpatterns = [
    path("cluster/", cluster.page, name="cluster"),
    path("cluster/<slug:name>/", cluster.node, name="node"),
    path("teams/", teams.page, name="teams"),
    path("teams/<slug:slug>/", teams.team, name="team"),
    path("teams/<slug:slug>/quota/", teams_quota.quota, name="team_quota"),
    path("teams/<slug:slug>/priority/", teams_quota.give, name="priority_give"),
    path("teams/<slug:slug>/priority/<int:key>/revoke/", teams_quota.revoke, name="priority_revoke"),
    path("teams/<slug:slug>/members/", teams.add_member, name="member_add"),
    path("teams/<slug:slug>/members/<int:key>/remove/", teams.remove_member, name="member_remove"),
    path("invoices/", invoices.page, name="invoices"),
    path("invoices/<slug:slug>/<str:month>/", invoices.invoice, name="invoice"),
    path("invoices/<slug:slug>/<str:month>/lines.csv", invoices.download, name="invoice_csv"),
    path("invoices/<slug:slug>/<str:month>/lines/<str:key>/", invoices.line, name="invoice_line"),
    path("tokens/", tokens.page, name="tokens"),
    path("tokens/<int:key>/revoke/", tokens.revoke, name="token_revoke"),
    path("finance/months/", invoices_periods.page, name="periods"),
    path("finance/months/<str:month>/", invoices_periods.period, name="period"),
    path("finance/months/<str:month>/close/", invoices_periods.close, name="period_close"),
    path("finance/prices/", rates.page, name="rates"),
    path("operations/nodes/", operator.nodes, name="nodes"),
    path("operations/nodes/enrol/", operator.enrol, name="node_enrol"),
    path("operations/nodes/<slug:name>/cordon/", operator.cordon, name="node_cordon"),
    path("operations/nodes/<slug:name>/uncordon/", operator.uncordon, name="node_uncordon"),
    path("operations/nodes/<slug:name>/revoke/", operator.revoke, name="node_revoke"),
    path("operations/devices/<str:uuid>/clear/", operator.clear, name="device_clear"),
    path("operations/policies/", policies.page, name="policies"),
    path("operations/policies/edit/", policies.edit, name="policy_edit"),
    path("operations/policies/json/", policies.edit_json, name="policy_json"),
    path("operations/policies/save/", policies.save, name="policy_save"),
    path("operations/policies/compare/", policies.compare, name="policy_compare"),
    path("operations/policies/<int:number>/", policies.version, name="policy"),
    path("operations/policies/<int:number>/activate/", policies.put_in_force, name="policy_activate"),
    path("operations/policies/<int:number>/roll-back/", policies.back, name="policy_roll_back"),
    path("operations/cohorts/", cohorts.page, name="cohorts"),
    path("operations/cohorts/<int:key>/rename/", cohorts.rename, name="cohort_rename"),
    path("operations/cohorts/<int:key>/remove/", cohorts.remove, name="cohort_remove"),
    path("operations/audit/", audit.page, name="audit"),
]
