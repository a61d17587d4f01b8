"""Accounts over HTTP: who has one, and closing that of somebody who leaves. Operators."""

from __future__ import annotations

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope, User
from portal.api.describe import PAGING, call, query
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag
from portal.api.pagination import PARAMETERS, Pages
from portal.api.representations import Row
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.common.errors import NotFound
from portal.jobs.departures import close_account, open_work, people, reopen_account
from portal.teams.models import Membership, Role

TAG = "people"


class HeldRole(ResponseShape):
    """A role that somebody holds."""

    team = s.SlugField()
    role = s.ChoiceField(Role.choices)
    ends_at = s.DateTimeField(allow_null=True)


class PersonAnswer(ResponseShape):
    """Somebody's account."""

    username = s.CharField()
    name = s.CharField(allow_blank=True)
    email = s.CharField(allow_blank=True)
    is_closed = s.BooleanField()
    closed_at = s.DateTimeField(allow_null=True, help_text="Null: open, or closed before this was kept.")
    last_signed_in_at = s.DateTimeField(allow_null=True)


class PersonDetail(PersonAnswer):
    """Somebody's account with what it has."""

    roles = HeldRole(many=True)
    waiting = s.IntegerField(
        help_text="Requests, jobs and series that have not begun: closing takes them back."
    )
    running = s.IntegerField(help_text="Leases that run.")


class AccountBody(Body):
    """Whether somebody may come in."""

    is_closed = Flag()
    ends_leases = Flag(default=False, help_text="With closing: end what runs now; else it runs to its end.")


class People(Endpoint):
    """Who has an account."""

    read_scope = Scope.ADMIN
    parameters = PARAMETERS | {"q", "is_closed"}

    @call(
        "List people", answer=PersonAnswer, is_list=True, tag=TAG,
        parameters=(
            *PAGING,
            query("q", "Some letters of a sign-in name, a name or a mail address."),
            query("is_closed", "Closed accounts, or open ones.", bool),
        ),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """List the accounts of the installation, newest first. Operators."""
        text, is_closed = request.query_params.get("q", "")[:80], self.yes_or_no("is_closed")
        rows = people(rights=self.rights, text=text, is_closed=is_closed)
        pages = Pages()
        return Response(pages.answer([person_row(user) for user in pages.page(rows, request)]))


class OnePerson(Endpoint):
    """Somebody's account."""

    read_scope = Scope.ADMIN

    @call("Read a person", answer=PersonDetail, refusals=(404,), tag=TAG)
    def get(self, request: Request, username: str) -> Response:
        """Read somebody's account, their roles, and what closing it would end. Operators."""
        return Response(self._detail(username))

    @call(
        "Close or reopen an account", body=AccountBody, answer=PersonDetail, refusals=(404, 409, 422), tag=TAG
    )
    def put(self, request: Request, username: str) -> Response:
        """Close an account, which ends sessions and tokens and takes back what waits, or open it again. Operators.

        Safe to repeat: closing once more ends what is left.
        """
        self.require_operator()
        values = self.take(AccountBody)
        if values["is_closed"]:
            close_account(username, actor=self.person, rights=self.rights, ends_leases=values["ends_leases"])
        else:
            reopen_account(username, actor=self.person, rights=self.rights, now=timezone.now())
        return Response(self._detail(username))

    def _detail(self, username: str) -> Row:
        user = people(rights=self.rights).filter(username=username).first()
        if user is None:
            raise NotFound
        work = open_work(user)
        return {
            **person_row(user),
            "roles": [
                {"team": one.team.slug, "role": one.role, "ends_at": instant(one.ends_at)}
                for one in Membership.objects.filter(user=user)
                .select_related("team")
                .order_by("team__slug", "role")
            ],
            "waiting": work.waits,
            "running": work.leases,
        }


def person_row(user: User) -> Row:
    """Return an account of a list."""
    return {
        "username": user.username,
        "name": user.display_name,
        "email": user.email,
        "is_closed": not user.is_active,
        "closed_at": instant(user.closed_at),
        "last_signed_in_at": instant(user.last_login),
    }
