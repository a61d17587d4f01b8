"""A person's own API tokens: made here, shown once, ended here."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import pgettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.models import ApiToken, Scope, User
from portal.audit.sign_ins import create_token, revoke_token
from portal.common.errors import Invalid
from portal.web.access import done, person
from portal.web.tokens.forms import TokenForm

LIVE, EXPIRED, REVOKED = "open", "expired", "revoked"
SHOWN = 100


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token without its secret."""

    key: int
    name: str
    prefix: str
    scopes: str
    state: str
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None
    is_live: bool


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the person's tokens; a POST makes one and shows its secret, here and never again."""
    form = TokenForm(request.POST) if request.method == "POST" else TokenForm()
    secret = _made(request, form) if form.is_bound else ""
    context = {
        "rows": token_rows(person(request), now=timezone.now()),
        "form": TokenForm() if secret else form,
        "secret": secret,
        "new_name": form.cleaned_data["name"] if secret else "",
        "login_command": f"berth login --url {request.scheme}://{request.get_host()} --token -",
    }
    return render(request, "web/tokens.html", context, status=422 if form.is_bound and not secret else 200)


@require_POST
def revoke(request: HttpRequest, key: int) -> HttpResponse:
    """End one of the person's own tokens at once."""
    revoke_token(user=person(request), token_id=key, now=timezone.now())
    return done(request, _("The token is revoked: nothing can use it any more."), "web:tokens")


def token_rows(user: User, *, now: datetime) -> list[TokenRow]:
    """Return the person's tokens, usable ones first, then the newest."""
    rows = [_row(token, now) for token in ApiToken.objects.filter(user=user).order_by("-created_at")[:SHOWN]]
    return sorted(rows, key=lambda row: not row.is_live)


def _made(request: HttpRequest, form: TokenForm) -> str:
    if not form.is_valid():
        return ""
    values = form.cleaned_data
    try:
        new = create_token(
            user=person(request),
            name=values["name"],
            scopes=form.scopes(),
            days=values["days"],
            now=timezone.now(),
        )
    except Invalid as error:
        for field, text in error.fields.items():
            form.add_error({"scopes": "scope"}.get(field, field), text)
        return ""
    return new.secret


def _row(token: ApiToken, now: datetime) -> TokenRow:
    state = REVOKED if token.revoked_at else EXPIRED if token.expires_at <= now else LIVE
    return TokenRow(
        key=token.pk,
        name=token.name,
        prefix=token.prefix,
        scopes=pgettext("list", ", ").join(str(Scope(scope).label) for scope in token.scopes),
        state=state,
        created_at=token.created_at,
        expires_at=token.expires_at,
        used_at=token.last_used_at,
        is_live=state == LIVE,
    )
