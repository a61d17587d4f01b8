"""Teams over HTTP: the tree, members, quota, spend; and who calls."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from django.utils import timezone
from django.utils.translation import gettext as _
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import ApiToken, User
from portal.accounts.zones import set_profile
from portal.api.describe import IF_MATCH, call, query
from portal.api.endpoint import Endpoint
from portal.api.errors import PreconditionFailed, PreconditionRequired
from portal.api.fields import Body, Empty, Instant, Text, Whole
from portal.api.idempotency import once
from portal.api.money import month_of
from portal.api.pagination import MAX_FEED_SIZE
from portal.api.policies import tried_row
from portal.api.representations import Row
from portal.api.responses import Me as MeAnswer
from portal.api.responses import Member, QuotaAnswer, SpendAnswer, TeamDetail, TeamRow
from portal.api.responses_policies import QuotaTried
from portal.api.responses_setup import InvitationAnswer
from portal.api.wire import instant, money
from portal.audit.memberships import end_role, give_role
from portal.audit.organisation import (
    LEAST_TIME_OUT_S,
    MOST_GPU_SECONDS,
    MOST_TIME_OUT_S,
    ApprovalRules,
    Invitation,
    add_person,
    add_team,
    change_team,
    invite_again,
    may_change_team,
)
from portal.billing.models import BillingPeriod
from portal.billing.selectors import currency, period_of, team_spend
from portal.budgets.services import monthly_amounts
from portal.common.errors import Conflict, Forbidden, Invalid, NotFound
from portal.common.zones import LONGEST_NAME
from portal.leases.budget_standing import quota_uses
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LIVE_LEASES, RequestState
from portal.notifications.models import Notification
from portal.quotas.models import Quota
from portal.quotas.selectors import headroom, may_set_quota
from portal.quotas.services import planned_quota, set_quota
from portal.teams.models import Membership, Role, Team, TimeOutRule
from portal.teams.selectors import below, visible_team, visible_teams
from portal.web.invoices.months import named
from portal.web.policies.preview import try_quota

TAG = "teams"
MOST_MILLI = 10**9
MOST_RUN_S = 10**9
# What the rules of a quota call a field, by what it is called here.
_QUOTA_FIELDS = {"ceiling": "ceiling_milli", "lending": "lending_milli", "cohort": "cohort_id"}


class QuotaBody(Body):
    """A quota in thousandths of a reference GPU; without a ceiling the teams above limit it."""

    guaranteed_milli = Whole(least=0, most=MOST_MILLI)
    ceiling_milli = Whole(least=0, most=MOST_MILLI, allow_null=True)
    lending_milli = Whole(
        least=0, most=MOST_MILLI, allow_null=True, required=False, help_text="Left out: as it is; null: all."
    )
    cohort_id = Whole(
        least=1, most=2**63 - 1, allow_null=True, required=False, help_text="Left out: as it is; null: none."
    )
    most_duration_s = Whole(
        least=1, most=MOST_RUN_S, allow_null=True, required=False,
        help_text="How long one lease may run; left out: as it is; null: no limit.",
    )  # fmt: skip
    gpu_seconds_a_month = Whole(
        least=1, most=MOST_GPU_SECONDS, allow_null=True, required=False,
        help_text="Device seconds by share in a month; left out: as it is; null: no limit.",
    )  # fmt: skip
    most_memory_mib = Whole(
        least=1, most=10**9, allow_null=True, required=False,
        help_text="Device memory held at once; left out: as it is; null: no limit.",
    )  # fmt: skip


class MemberBody(Body):
    """Who gets which role."""

    username = Text(most=150)
    role = serializers.ChoiceField(Role.choices)
    ends_at = Instant(
        required=False,
        allow_null=True,
        default=None,
        help_text="From then on it gives no right; null: no end.",
    )


class NewTeamBody(Body):
    """A team to be; without a slug one is made from its name."""

    parent = Text(most=50)  # type: ignore[assignment]
    name = Text(most=80)
    slug = Text(most=50, allow_blank=True, default="")
    cost_centre = Text(most=40, allow_blank=True, default="")


class TeamBody(Body):
    """What an admin above decides about a team; what is left out stays as it is."""

    name = Text(most=80, required=False)
    cost_centre = Text(most=40, allow_blank=True, required=False)
    approval_above_gpu_seconds = Whole(
        least=0,
        most=MOST_GPU_SECONDS,
        allow_null=True,
        required=False,
        help_text="null: nothing needs an approval.",
    )
    second_approval_above_gpu_seconds = Whole(
        least=0,
        most=MOST_GPU_SECONDS,
        allow_null=True,
        required=False,
        help_text="Two people approve what is larger, one of a team above; null: one is enough.",
    )
    approval_time_out_s = Whole(
        least=LEAST_TIME_OUT_S,
        most=MOST_TIME_OUT_S,
        allow_null=True,
        required=False,
        help_text="How long a request waits for a decision; null: for ever.",
    )
    approval_time_out_then = serializers.ChoiceField(
        TimeOutRule.choices, required=False, help_text="What becomes of it then."
    )


class NewPersonBody(Body):
    """Somebody new and their first role in the team."""

    username = Text(most=150)
    display_name = Text(most=100, allow_blank=True, default="")
    role = serializers.ChoiceField(Role.choices)


class ProfileBody(Body):
    """The time zone and the language of one's own pages."""

    time_zone = Text(most=LONGEST_NAME, required=False, allow_blank=True)
    language = Text(most=10, required=False, allow_blank=True)


class MeEndpoint(Endpoint):
    """Who calls."""

    @call("Read who calls", answer=MeAnswer, tag="people")
    def get(self, request: Request) -> Response:
        """Read who calls, what roles they hold, for which teams they may ask, and how they see times."""
        return Response(self._told())

    @call("Change one's profile", body=ProfileBody, answer=MeAnswer, refusals=(422,), tag="people")
    def put(self, request: Request) -> Response:
        """Keep a time zone and a language; what is left out stays."""
        set_profile(user=self.person, **self.take(ProfileBody))
        return Response(self._told())

    def _told(self) -> dict[str, Any]:
        asks = self.rights.teams_with((Role.RESEARCHER, Role.ADMIN))
        names = dict(
            Team.objects.filter(pk__in=[pk for pk, _r in self.rights.held]).values_list("pk", "slug")
        )
        auth = self.request.auth
        return {
            "username": self.person.username,
            "display_name": self.person.display_name,
            "time_zone": self.person.time_zone,
            "language": self.person.language,
            "roles": [{"team": names[pk], "role": role} for pk, role in self.rights.held],
            "teams": list(Team.objects.filter(below(asks)).values_list("slug", flat=True)),
            "token_scopes": auth.scopes if isinstance(auth, ApiToken) else None,
            "unread_notifications": Notification.objects.filter(user=self.person, read_at=None).count(),
        }


class Teams(Endpoint):
    """The teams in sight."""

    @call("List teams", answer=TeamRow, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List the teams in sight."""
        rows = visible_teams(self.rights).select_related("parent")
        return Response({"next": None, "results": [team_row(team) for team in rows]})

    @call("Make a team", body=NewTeamBody, answer=TeamRow, status=201, refusals=(404, 422), tag=TAG)
    @once
    def post(self, request: Request) -> Response:
        """Make a team below another one: its admin, or an operator."""
        values = self.take(NewTeamBody)
        parent = visible_team(self.rights, values.pop("parent"))
        made = add_team(parent=parent, rights=self.rights, now=timezone.now(), **values)
        return Response(team_row(made), status=201, headers={"Location": f"/api/v1/teams/{made.slug}/"})


class OneTeam(Endpoint):
    """One team."""

    @call("Read a team", answer=TeamDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read a team with its headroom, this month's spend and how much is running and waiting."""
        team, now = visible_team(self.rights, slug), timezone.now()
        room, unit = headroom(team), currency()
        ids = list(Team.objects.filter(lineage__contains=[team.pk]).values_list("pk", flat=True))
        spent = team_spend(ids, period_of(now), now=now)
        return Response(
            {
                **team_row(team),
                "headroom": {
                    "used_milli": room.used_milli,
                    "guaranteed_milli": room.guaranteed_milli,
                    "ceiling_milli": room.ceiling_milli,
                    "left_milli": room.left_milli,
                    "bound_by": room.bound_by,
                },
                "spend": money(spent[team.pk], unit),
                "spend_with_below": money(sum(spent.values()), unit),
                "monthly_budget": money(monthly_amounts([team.pk], now).get(team.pk), unit),
                "live_leases": Lease.objects.filter(team=team, state__in=LIVE_LEASES).count(),
                "waiting_requests": LeaseRequest.objects.filter(team=team, state=RequestState.QUEUED).count(),
                "children": list(team.children.values_list("slug", flat=True)),
            }
        )

    @call("Change a team", body=TeamBody, answer=TeamRow, refusals=(400, 404, 415, 422), tag=TAG)
    def put(self, request: Request, slug: str) -> Response:
        """Set name, cost centre and the rules of approvals: an admin of a team above, or an operator."""
        team = visible_team(self.rights, slug)
        if not may_change_team(self.rights, team):
            raise Forbidden(_("An admin of a team above decides on this."))
        values = self.take(TeamBody)
        names = {name: values.pop(name, getattr(team, name)) for name in ("name", "cost_centre")}
        rules = replace(ApprovalRules.of(team), **values)
        changed = change_team(team=team, rules=rules, rights=self.rights, now=timezone.now(), **names)
        return Response(team_row(changed))


class NewPeople(Endpoint):
    """New accounts in a team."""

    shown_once = ("link",)

    @call(
        "Add a person", body=NewPersonBody, answer=InvitationAnswer, status=201, refusals=(404, 422), tag=TAG
    )
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Make an account with a role in the team. The answer has the link to choose a password, once."""
        team = visible_team(self.rights, slug)
        self.rights.require(team, Role.ADMIN, Role.OPERATOR)
        made = add_person(team=team, rights=self.rights, now=timezone.now(), **self.take(NewPersonBody))
        at = f"/api/v1/teams/{team.slug}/members/"
        return Response(invitation_row(made, request), status=201, headers={"Location": at})


class Invitations(Endpoint):
    """New links for people who lost theirs, or the password."""

    shown_once = ("link",)

    @call(
        "Make a new link", body=Empty, answer=InvitationAnswer, status=201, refusals=(404, 422), tag="people"
    )
    @once
    def post(self, request: Request, username: str) -> Response:
        """Make a link with which somebody chooses a new password. Operators."""
        self.require_operator()
        self.take(Empty)
        made = invite_again(username=username, rights=self.rights, now=timezone.now())
        return Response(invitation_row(made, request), status=201)


class Members(Endpoint):
    """Who is in a team."""

    @call("List members", answer=Member, is_list=True, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """List the roles held on a team itself."""
        team = visible_team(self.rights, slug)
        rows = team.memberships.select_related("user").order_by("user__username", "role")
        return Response({"next": None, "results": [member_row(row) for row in rows[:MAX_FEED_SIZE]]})

    @call("Give a role", body=MemberBody, answer=Member, status=201, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Give a person a role in a team, never one above one's own; one that they have gets the end named.

        Admins and operators.
        """
        values, team = self.take(MemberBody), visible_team(self.rights, slug)
        self.rights.require(team, Role.ADMIN, Role.OPERATOR)
        user = User.objects.filter(username=values["username"], is_active=True).first()
        if user is None:
            raise Invalid(fields={"username": _("Nobody signs in under this name.")})
        give_role(
            team=team, user=user, role=values["role"], ends_at=values["ends_at"], rights=self.rights,
            now=timezone.now(),
        )  # fmt: skip
        made = team.memberships.select_related("user").get(user=user, role=values["role"])
        at = f"/api/v1/teams/{team.slug}/members/"
        return Response(member_row(made), status=201, headers={"Location": at})


class OneMember(Endpoint):
    """One role of one person."""

    @call("Take a role away", status=204, refusals=(404, 409), tag=TAG)
    def delete(self, request: Request, slug: str, username: str, role: str) -> Response:
        """Take a role in a team away; the last admin stays."""
        team = visible_team(self.rights, slug)
        self.rights.require(team, Role.ADMIN, Role.OPERATOR)
        held = team.memberships.filter(user__username=username, role=role).first()
        if held is None:
            raise NotFound
        end_role(team=team, membership_id=held.pk, rights=self.rights, now=timezone.now())
        return Response(status=204)


class OneQuota(Endpoint):
    """A team's quota."""

    @call("Read a quota", answer=QuotaAnswer, refusals=(404,), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read a team's quota; its ETag is what an edit must send back."""
        return _quota_answer(visible_team(self.rights, slug))

    @call(
        "Set a quota", body=QuotaBody, answer=QuotaAnswer, parameters=[IF_MATCH],
        refusals=(400, 404, 409, 412, 415, 422, 428), tag=TAG,
    )  # fmt: skip
    def put(self, request: Request, slug: str) -> Response:
        """Set guarantee, ceiling, lending limit, cohort and limits: an admin of a team above, or an operator."""
        team = visible_team(self.rights, slug)
        if not may_set_quota(self.rights, team):
            raise Forbidden(_("An admin of a team above decides on this quota."))
        tag, values = request.headers.get("If-Match"), self.take(QuotaBody)
        if tag is None:
            raise PreconditionRequired
        row = Quota.objects.filter(team=team).first()
        version = row.version if row else 1
        if tag.strip() != f'"{version}"':
            raise PreconditionFailed
        try:
            set_quota(
                team=team, actor=self.person, rights=self.rights, version=version, now=timezone.now(), **values
            )  # fmt: skip
        except Conflict as error:
            raise PreconditionFailed from error
        except Invalid as error:
            raise Invalid(fields={_QUOTA_FIELDS.get(k, k): v for k, v in error.fields.items()}) from error
        return _quota_answer(team)


class PreviewQuota(Endpoint):
    """Whom another quota would affect."""

    http_method_names = ["post"]

    @call("Preview a quota", body=QuotaBody, answer=QuotaTried, refusals=(404, 409, 422), tag=TAG)
    @once
    def post(self, request: Request, slug: str) -> Response:
        """Play one cycle with another quota of a team and say who would start, wait or be blocked by it.

        Changes nothing. Tells of requests of teams in sight only. An admin of a team above, or an operator.
        """
        team = visible_team(self.rights, slug)
        if not may_set_quota(self.rights, team):
            raise Forbidden(_("An admin of a team above decides on this quota."))
        values, row = self.take(QuotaBody), Quota.objects.filter(team=team).first()
        try:
            planned = planned_quota(
                team=team, actor=self.person, rights=self.rights, version=row.version if row else 1,
                now=timezone.now(), **values,
            )  # fmt: skip
        except Invalid as error:
            raise Invalid(fields={_QUOTA_FIELDS.get(k, k): v for k, v in error.fields.items()}) from error
        tried = try_quota(planned, self.rights)
        return Response({"preview": tried_row(tried) if tried else None})


class SpendEndpoint(Endpoint):
    """What a team costs."""

    parameters = frozenset({"month"})

    @call(
        "Read a team's spend", answer=SpendAnswer, parameters=[query("month", "YYYY-MM, default now.")],
        refusals=(404,), tag=TAG,
    )  # fmt: skip
    def get(self, request: Request, slug: str) -> Response:
        """Read what a team and each team below it cost in a month, running leases included."""
        team, now = visible_team(self.rights, slug), timezone.now()
        period = month_or_now(request)
        rows = list(Team.objects.filter(lineage__contains=[team.pk]))
        spent, unit = team_spend([row.pk for row in rows], period, now=now), currency()
        return Response(
            {
                "month": month_of(period),
                "total": money(sum(spent.values()), unit),
                "teams": [{"team": row.slug, "spend": money(spent[row.pk], unit)} for row in rows],
            }
        )


def month_or_now(request: Request) -> BillingPeriod:
    """Return the month named by ``?month=``, or the present one; raises NotFound."""
    month = request.query_params.get("month")
    return named(month) if month else period_of(timezone.now())


def team_row(team: Team) -> Row:
    """Return a team."""
    return {
        "slug": team.slug,
        "name": team.name,
        "parent": team.parent.slug if team.parent else None,
        "cost_centre": team.cost_centre,
        **asdict(ApprovalRules.of(team)),
    }


def invitation_row(made: Invitation, request: Request) -> Row:
    """Return an invitation with its link."""
    return {
        "username": made.user.username,
        "link": request.build_absolute_uri(made.path),
        "expires_at": instant(made.expires_at),
    }


def member_row(row: Membership) -> Row:
    """Return a role held; its user must be at hand."""
    return {
        "username": row.user.username,
        "display_name": row.user.display_name,
        "role": row.role,
        "since": instant(row.created_at),
        "ends_at": instant(row.ends_at),
    }


def _quota_answer(team: Team) -> Response:
    row = Quota.objects.select_related("cohort").filter(team=team).first() or Quota(team=team)
    use = quota_uses([row], now=timezone.now())[team.pk]
    body: dict[str, Any] = {
        "guaranteed_milli": row.guaranteed_milli,
        "ceiling_milli": row.ceiling_milli,
        "used_milli": row.used_milli,
        "lending_milli": row.lending_milli,
        "cohort": None if row.cohort is None else {"id": row.cohort.pk, "name": row.cohort.name},
        "most_duration_s": row.most_duration_s,
        "gpu_seconds_a_month": row.gpu_seconds_a_month,
        "used_gpu_seconds": use.gpu_seconds,
        "most_memory_mib": row.most_memory_mib,
        "held_memory_mib": use.memory_mib,
        "version": row.version,
    }
    return Response(body, headers={"ETag": f'"{row.version}"'})
