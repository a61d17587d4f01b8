"""Cohorts and priority grants over HTTP."""

from __future__ import annotations

from datetime import datetime

from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Empty, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.pagination import MAX_FEED_SIZE
from portal.api.representations import Row
from portal.api.responses_policies import CohortAnswer, PriorityGrantAnswer
from portal.api.wire import instant
from portal.common.errors import Forbidden
from portal.quotas.cohorts import (
    MOST_NAME,
    CohortStanding,
    cohort_named,
    cohorts,
    create_cohort,
    delete_cohort,
    rename_cohort,
)
from portal.quotas.grants import (
    LEAST_STEPS,
    MOST_REASON,
    MOST_STEPS,
    give_priority,
    grants_of,
    revoke_priority,
    state_of,
)
from portal.quotas.models import PriorityGrant
from portal.quotas.selectors import may_set_quota
from portal.teams.models import Team
from portal.teams.selectors import Rights, visible_team

TAG = "quotas"


class CohortBody(Body):
    """The name of a cohort."""

    name = Text(most=MOST_NAME)


class PriorityBody(Body):
    """How many steps a team's requests go before others, from when until when, and why."""

    steps = Whole(least=LEAST_STEPS, most=MOST_STEPS)
    starts_at = Instant()
    ends_at = Instant()
    reason = Text(most=MOST_REASON)


class Cohorts(Endpoint):
    """Teams that lend each other what they do not use."""

    @call("List cohorts", answer=CohortAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the cohorts with their teams, what is borrowed and what could be lent. Operators."""
        self.require_operator()
        return Response({"next": None, "results": [cohort_row(found) for found in cohorts()]})

    @call("Make a cohort", body=CohortBody, answer=CohortAnswer, status=201, refusals=(422,), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Make a cohort; teams join it by their quota. Operators."""
        self.require_operator()
        values = self.take(CohortBody)
        made = create_cohort(actor=self.person, rights=self.rights, now=timezone.now(), **values)
        at = f"/api/v1/cohorts/{made.pk}/"
        return Response(cohort_row(CohortStanding(made, [])), status=201, headers={"Location": at})


class OneCohort(Endpoint):
    """One cohort."""

    @call("Read a cohort", answer=CohortAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, key: int) -> Response:
        """Read a cohort with its teams. Operators."""
        self.require_operator()
        return Response(cohort_row(cohort_named(key)))

    @call("Rename a cohort", body=CohortBody, answer=CohortAnswer, refusals=(400, 404, 415, 422), tag=TAG)
    def put(self, request: Request, key: int) -> Response:
        """Give a cohort another name. Operators."""
        self.require_operator()
        values = self.take(CohortBody)
        rename_cohort(actor=self.person, rights=self.rights, cohort_id=key, now=timezone.now(), **values)
        return Response(cohort_row(cohort_named(key)))

    @call("Remove a cohort", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, key: int) -> Response:
        """Remove a cohort that no team is in. Operators."""
        self.require_operator()
        delete_cohort(actor=self.person, rights=self.rights, cohort_id=key, now=timezone.now())
        return Response(status=204)


class PriorityGrants(Endpoint):
    """For how long a team's requests go before others."""

    @call("List priority grants", answer=PriorityGrantAnswer, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """List the grants of a team and those above it that reach it, the latest start first."""
        team, now = visible_team(self.rights, slug), timezone.now()
        rows = [grant_row(row, now) for row in grants_of(team)[:MAX_FEED_SIZE]]
        return Response({"next": None, "results": rows})

    @call(
        "Boost priority", body=PriorityBody, answer=PriorityGrantAnswer, status=201, refusals=(404, 422), tag=TAG
    )  # fmt: skip
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Let a team and those below it go first for a time: an admin of a team above, or an operator."""
        team = team_to_decide_on(self.rights, slug)
        now = timezone.now()
        made = give_priority(
            team=team, actor=self.person, rights=self.rights, now=now, **self.take(PriorityBody)
        )
        at = f"/api/v1/teams/{team.slug}/priority/"
        return Response(grant_row(made, now), status=201, headers={"Location": at})


class RevokePriority(Endpoint):
    """End a priority grant."""

    @call("Revoke priority", body=Empty, answer=PriorityGrantAnswer, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, slug: str, key: int) -> Response:
        """End a team's priority grant now: an admin of a team above, or an operator."""
        team = team_to_decide_on(self.rights, slug)
        self.take(Empty)
        now = timezone.now()
        done = revoke_priority(team=team, grant_id=key, actor=self.person, rights=self.rights, now=now)
        return Response(grant_row(done, now))


def team_to_decide_on(rights: Rights, slug: str) -> Team:
    """Return a team in sight that this person decides on; raises NotFound and Forbidden."""
    team = visible_team(rights, slug)
    if not may_set_quota(rights, team):
        raise Forbidden(_("An admin of a team above decides on priority boosts."))
    return team


def cohort_row(found: CohortStanding) -> Row:
    """Return a cohort with its teams."""
    return {
        "id": found.cohort.pk,
        "name": found.cohort.name,
        "borrowed_milli": found.borrowed_milli,
        "lendable_milli": found.lendable_milli,
        "members": [
            {
                "team": share.team.slug,
                "name": share.team.name,
                "guaranteed_milli": share.guaranteed_milli,
                "used_milli": share.used_milli,
                "borrowed_milli": share.borrowed_milli,
                "lending_milli": share.lending_milli,
                "lendable_milli": share.lendable_milli,
            }
            for share in found.shares
        ],
    }


def grant_row(row: PriorityGrant, now: datetime) -> Row:
    """Return a priority grant; its team and maker must be at hand."""
    return {
        "id": row.pk,
        "team": row.team.slug,
        "steps": row.steps,
        "starts_at": instant(row.starts_at),
        "ends_at": instant(row.ends_at),
        "reason": row.reason,
        "state": state_of(row, now=now),
        "made_by": row.made_by.username if row.made_by else None,
        "created_at": instant(row.created_at),
        "revoked_at": instant(row.revoked_at),
    }
