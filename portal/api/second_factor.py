"""One's own second factor over HTTP, and what operators decide about second factors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from django.utils import timezone
from rest_framework import serializers as s
from rest_framework.request import Request
from rest_framework.response import Response

from portal.accounts.models import Scope
from portal.api.describe import call
from portal.api.endpoint import Endpoint
from portal.api.fields import Body, Text
from portal.api.idempotency import once
from portal.api.responses import ResponseShape
from portal.api.wire import instant
from portal.common.addresses import client_address
from portal.second_factor import passkeys, services
from portal.teams.models import Role

TAG = "people"
Post = TypeVar("Post", bound=Callable[..., Response])


class FactorAnswer(ResponseShape):
    """What one has and needs."""

    is_on = s.BooleanField()
    since = s.DateTimeField(allow_null=True)
    recovery_codes_left = s.IntegerField()
    is_required = s.BooleanField(help_text="Whether a role that one holds needs it.")


class NewAppAnswer(ResponseShape):
    """What an authenticator app has to know."""

    secret = s.CharField(allow_null=True, help_text="Shown once.")
    address = s.CharField(allow_null=True, help_text="The same as otpauth://, for a QR code.")


class RecoveryCodesAnswer(ResponseShape):
    """Codes for who has lost the app, each good once."""

    recovery_codes = s.ListField(child=s.CharField(), allow_null=True, help_text="Shown once; keep them now.")


class PasskeyAnswer(ResponseShape):
    """One of one's own passkeys; it is made on a page, as a browser has to."""

    id = s.IntegerField()
    name = s.CharField()
    created_at = s.DateTimeField()
    last_used_at = s.DateTimeField(allow_null=True)


class RequiringRolesAnswer(ResponseShape):
    """The roles that need a second factor."""

    roles = s.ListField(child=s.ChoiceField(Role.choices))


class ProofBody(Body):
    """One's password again."""

    password = Text(most=500, trim_whitespace=False)


class CodeBody(Body):
    """What the app shows."""

    code = Text(most=services.LONGEST_CODE)


class RequiringRolesBody(Body):
    """The roles that need a second factor; none: nobody does."""

    roles = s.ListField(child=s.ChoiceField(Role.choices), max_length=len(Role.values))


def proved(post: Post) -> Post:
    """Take the password first, outside of what an Idempotency-Key holds together: a wrong one stays counted."""

    @functools.wraps(post)
    def wrapped(view: Endpoint, request: Request, **named: int) -> Response:
        password = view.take(ProofBody)["password"]
        services.prove(view.person, password, client_address(request), now=timezone.now())
        return post(view, request, **named)

    return wrapped  # type: ignore[return-value]


class SecondFactor(Endpoint):
    """One's own second factor."""

    read_scope = Scope.ADMIN
    shown_once = ("secret", "address")

    @call("Read one's second factor", answer=FactorAnswer, tag=TAG)
    def get(self, request: Request) -> Response:
        """Say whether one has a second factor, and whether one needs it."""
        state = services.state_of(self.person)
        return Response(
            {
                "is_on": state.since is not None,
                "since": instant(state.since),
                "recovery_codes_left": state.codes_left,
                "is_required": state.is_required,
            }
        )

    @call("Begin a second factor", body=ProofBody, answer=NewAppAnswer, refusals=(403, 409, 422), tag=TAG)
    @proved
    @once
    def post(self, request: Request) -> Response:
        """Make the secret of an authenticator app; it counts once a first code was right."""
        app = services.begin(self.person, now=timezone.now())
        return Response({"secret": app.secret, "address": app.address})

    @call("Confirm a second factor", body=CodeBody, answer=RecoveryCodesAnswer, refusals=(409, 422), tag=TAG)
    def put(self, request: Request) -> Response:
        """Turn the second factor on by a first code; answers the recovery codes, which are never shown again."""
        codes = services.confirm(self.person, self.take(CodeBody)["code"], now=timezone.now())
        return Response({"recovery_codes": codes})


class RecoveryCodes(Endpoint):
    """Other recovery codes."""

    shown_once = ("recovery_codes",)

    @call("Renew recovery codes", body=ProofBody, answer=RecoveryCodesAnswer, refusals=(409, 422), tag=TAG)
    @proved
    @once
    def post(self, request: Request) -> Response:
        """Make other recovery codes; those before are void."""
        return Response({"recovery_codes": services.renew_codes(self.person, now=timezone.now())})


class SecondFactorOff(Endpoint):
    """No second factor any more."""

    @call("Turn one's second factor off", body=ProofBody, status=204, refusals=(409, 422), tag=TAG)
    @proved
    @once
    def post(self, request: Request) -> Response:
        """Forget one's second factor. Safe to repeat; refused where a role of one's own needs it."""
        services.turn_off(self.person, now=timezone.now())
        return Response(status=204)


class Passkeys(Endpoint):
    """One's own passkeys."""

    read_scope = Scope.ADMIN

    @call("List one's passkeys", answer=PasskeyAnswer, is_list=True, tag=TAG)
    def get(self, request: Request) -> Response:
        """List one's own passkeys, the oldest first."""
        rows = [
            {
                "id": row.pk,
                "name": row.name,
                "created_at": instant(row.created_at),
                "last_used_at": instant(row.last_used_at),
            }
            for row in passkeys.passkeys_of(self.person)
        ]
        return Response({"next": None, "results": rows})


class RemovePasskey(Endpoint):
    """A passkey that is not needed any more."""

    @call("Remove a passkey", body=ProofBody, status=204, refusals=(404, 422), tag=TAG)
    @proved
    @once
    def post(self, request: Request, key: int) -> Response:
        """Forget one of one's own passkeys."""
        passkeys.remove_passkey(self.person, key, now=timezone.now())
        return Response(status=204)


class RequiringRoles(Endpoint):
    """Which roles need a second factor."""

    @call("Read which roles need a second factor", answer=RequiringRolesAnswer, refusals=(403,), tag=TAG)
    def get(self, request: Request) -> Response:
        """Read which roles need a second factor. Operators."""
        self.require_operator()
        return Response({"roles": services.required_roles()})

    @call(
        "Say which roles need a second factor",
        body=RequiringRolesBody,
        answer=RequiringRolesAnswer,
        refusals=(403, 409, 422),
        tag=TAG,
    )
    def put(self, request: Request) -> Response:
        """Say which roles need a second factor; who needs one and has none is signed out. Operators."""
        values = self.take(RequiringRolesBody)
        services.require(values["roles"], actor=self.person, rights=self.rights, now=timezone.now())
        return Response({"roles": services.required_roles()})


class ResetFactor(Endpoint):
    """Somebody who has lost app and codes."""

    @call("Reset somebody's second factor", status=204, refusals=(403, 404, 409), tag=TAG)
    def delete(self, request: Request, username: str) -> Response:
        """Forget somebody's second factor and sign them out everywhere. Operators."""
        services.reset(username, actor=self.person, rights=self.rights, now=timezone.now())
        return Response(status=204)
