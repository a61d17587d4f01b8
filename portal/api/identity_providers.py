"""Single sign-on over HTTP: the identity providers that operators set up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Flag, Text
from portal.api.idempotency import once
from portal.api.responses import ResponseShape
from portal.common.clock import db_now
from portal.common.errors import Invalid, NotFound
from portal.sso.models import LONGEST_GROUP, IdentityProvider, ProviderAdmission, ProviderProtocol
from portal.sso.providers import (
    MOST_RULES,
    ProviderSpec,
    RuleSpec,
    add_provider,
    change_provider,
    remove_provider,
    told,
)
from portal.teams.models import Role

TAG = "people"


class RuleBody(Body):
    """A group at the provider, and the role that it gives in a team."""

    group = Text(most=LONGEST_GROUP)
    team = Text(most=50)
    role = Text(most=12)


class ProviderBody(Body):
    """A provider with all its rules."""

    name = Text(most=60)
    protocol = Text(
        most=8,
        required=False,
        default=str(ProviderProtocol.OPENID),
        help_text="`openid`, or `ldap` for a directory.",
    )
    issuer = Text(most=300, help_text="Of a directory its address, such as `ldaps://ldap.example.org`.")
    client_id = Text(most=200, help_text="Of a directory the DN that people are looked up by.")
    client_secret = Text(most=500, required=False, default="", help_text="Left out: the one there is.")
    groups_claim = Text(
        most=100,
        required=False,
        default="groups",
        help_text="Of a directory an attribute, such as `memberOf`.",
    )
    base_dn = Text(
        most=300, required=False, default="", allow_blank=True, help_text="People and groups of a directory."
    )
    user_filter = Text(
        most=300, required=False, default="", allow_blank=True, help_text="Of a directory: `(uid={name})`."
    )
    admission = Text(most=10, required=False, default=str(ProviderAdmission.GROUPS))
    is_active = Flag(required=False, default=True)
    rules = s.ListField(child=RuleBody(), required=False, default=list, max_length=MOST_RULES)


class NewProviderBody(ProviderBody):
    """A provider with its short name."""

    slug = Text(most=40)


class RuleAnswer(ResponseShape):
    """A group at the provider, and the role that it gives in a team."""

    group = s.CharField()
    team = s.CharField()
    role = s.ChoiceField(Role.choices)


class ProviderAnswer(ResponseShape):
    """A provider; its secret is never told."""

    slug = s.CharField()
    name = s.CharField()
    protocol = s.ChoiceField(ProviderProtocol.choices)
    issuer = s.CharField()
    client_id = s.CharField()
    has_secret = s.BooleanField()
    groups_claim = s.CharField()
    base_dn = s.CharField()
    user_filter = s.CharField()
    admission = s.ChoiceField(ProviderAdmission.choices)
    is_active = s.BooleanField()
    rules = RuleAnswer(many=True)


class IdentityProviders(Endpoint):
    """Identity providers."""

    @call("List identity providers", answer=ProviderAnswer, is_list=True, refusals=(403,), tag=TAG)
    def get(self, request: Request) -> Response:
        """List the providers by which people sign in. Operators."""
        self.require_operator()
        return Response({"next": None, "results": [told(one) for one in IdentityProvider.objects.all()]})

    @call("Add an identity provider", body=NewProviderBody, answer=ProviderAnswer, status=201, refusals=(403, 409, 422),
          tag=TAG)  # fmt: skip
    @once
    def post(self, request: Request) -> Response:
        """Set up a provider; it is asked who it is, unless `is_active` is false. Operators."""
        values = self.take(NewProviderBody)
        slug = values.pop("slug")
        with _as_fields_are_called():
            made = add_provider(
                slug=slug, spec=_spec(values), actor=self.person, rights=self.rights, now=db_now()
            )
        location = f"/api/v1/identity-providers/{made.slug}/"
        return Response(told(made), status=201, headers={"Location": location})


class OneIdentityProvider(Endpoint):
    """One identity provider."""

    @call("Read an identity provider", answer=ProviderAnswer, refusals=(403, 404), tag=TAG)
    def get(self, request: Request, slug: str) -> Response:
        """Read a provider with its rules. Operators."""
        self.require_operator()
        found = IdentityProvider.objects.filter(slug=slug).first()
        if found is None:
            raise NotFound
        return Response(told(found))

    @call(
        "Change an identity provider",
        body=ProviderBody,
        answer=ProviderAnswer,
        refusals=(403, 404, 422),
        tag=TAG,
    )
    def put(self, request: Request, slug: str) -> Response:
        """Change a provider and replace its rules; roles follow at people's next sign-in. Operators."""
        values = self.take(ProviderBody)
        with _as_fields_are_called():
            changed = change_provider(
                slug=slug, spec=_spec(values), actor=self.person, rights=self.rights, now=db_now()
            )
        return Response(told(changed))

    @call("Remove an identity provider", status=204, refusals=(403, 404), tag=TAG)
    def delete(self, request: Request, slug: str) -> Response:
        """Forget a provider; the roles that its groups gave end now, people keep their accounts. Operators."""
        remove_provider(slug=slug, actor=self.person, rights=self.rights, now=db_now())
        return Response(status=204)


@contextmanager
def _as_fields_are_called() -> Iterator[None]:
    """Name the field of a refusal as the body does."""
    try:
        yield
    except Invalid as error:
        if "secret" in error.fields:
            error.fields["client_secret"] = error.fields.pop("secret")
        raise


def _spec(values: dict[str, Any]) -> ProviderSpec:
    rules = [RuleSpec(**rule) for rule in values.pop("rules")]
    return ProviderSpec(secret=values.pop("client_secret"), rules=rules, **values)
