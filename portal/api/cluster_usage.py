"""The bill of a month beside what clusters counted, over HTTP."""

from __future__ import annotations

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.money import month_of
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.cluster_usage.models import BooksState
from portal.cluster_usage.selectors import (
    DifferenceCause,
    UsageDifference,
    books_of_clusters,
    usage_differences,
)
from portal.web.capacity import require_finance_or_operator
from portal.web.invoices.months import named

TAG = "money"


class ClusterBooksAnswer(ResponseShape):
    """What a pool's agent said last of its cluster's accounting."""

    node = s.CharField()
    state = s.ChoiceField(BooksState.choices)
    why = s.CharField()
    told_at = s.DateTimeField()
    refused = s.IntegerField(help_text="Rows that could not be true and were left out.")
    refused_why = s.CharField()


class CausePartAnswer(ResponseShape):
    """Seconds of a difference by one cause, and what shows it."""

    cause = s.ChoiceField(DifferenceCause.choices)
    seconds = s.IntegerField()
    evidence = s.CharField()


class UsageDifferenceAnswer(ResponseShape):
    """A lease of a pool; null is unknown, more than 0 billed and not counted by the cluster."""

    lease = s.CharField()
    team = s.CharField()
    node = s.CharField()
    jobs = s.ListField(child=s.CharField())
    billed_s = s.IntegerField()
    cluster_s = s.IntegerField(allow_null=True)
    difference_s = s.IntegerField(allow_null=True)
    before_s = s.IntegerField(
        allow_null=True, help_text="From the cluster's start to ours, less the skew of the agent's clock."
    )
    after_s = s.IntegerField(allow_null=True, help_text="From the cluster's end to ours, likewise.")
    is_notable = s.BooleanField(help_text="More than 5 s, or unknown.")
    is_explained = s.BooleanField()
    parts = CausePartAnswer(many=True)


class ClusterUsageAnswer(ResponseShape):
    """Bill and clusters of a month: every lease of a pool that ended in it."""

    month = s.CharField()
    clusters = ClusterBooksAnswer(many=True)
    leases = UsageDifferenceAnswer(many=True)


class MonthClusterUsage(Endpoint):
    """The bill of a month beside what clusters counted."""

    @call(
        "Compare a month's bill with what clusters counted",
        answer=ClusterUsageAnswer,
        refusals=(404,),
        tag=TAG,
    )
    def get(self, request: Request, month: str) -> Response:
        """Read billed seconds, those of the cluster's accounting and named causes. Finance, operators."""
        require_finance_or_operator(self.rights)
        period = named(month)
        clusters = [
            {
                "node": one.node.name,
                "state": one.state,
                "why": one.why,
                "told_at": one.told_at,
                "refused": one.refused,
                "refused_why": one.refused_why,
            }
            for one in books_of_clusters()
        ]
        leases = [_shown(one) for one in usage_differences(period)]
        return Response({"month": month_of(period), "clusters": clusters, "leases": leases})


def _shown(one: UsageDifference) -> Row:
    return {
        "lease": one.lease.uid,
        "team": one.lease.team.slug,
        "node": one.lease.node.name,
        "jobs": list(one.jobs),
        "billed_s": one.billed_s,
        "cluster_s": one.cluster_s,
        "difference_s": one.difference_s,
        "before_s": one.before_s,
        "after_s": one.after_s,
        "is_notable": one.is_notable,
        "is_explained": one.is_explained,
        "parts": [
            {"cause": part.cause, "seconds": part.seconds, "evidence": part.evidence} for part in one.parts
        ],
    }
