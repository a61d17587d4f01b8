"""The base of every view: rights once per call, strict bodies and parameters, one JSON format."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar, TypeVar, cast
from urllib.parse import unquote_to_bytes

from django.db.models import Model, QuerySet
from django.utils import timezone
from django.utils.translation import gettext as _
from django_filters import FilterSet
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.views import APIView

from portal.accounts.models import Scope, User
from portal.accounts.zones import zone_of
from portal.api.errors import LengthRequired, UncleanText
from portal.api.fields import Body
from portal.api.permissions import ScopeAllows
from portal.common.errors import Forbidden, Invalid
from portal.common.zones import zone_named
from portal.teams.selectors import Rights

T = TypeVar("T", bound=Model)


class OneFormat(BaseContentNegotiation):
    """Every answer is JSON, whatever the Accept header wishes for."""

    def select_parser(self, request: Request, parsers: Iterable[Any]) -> Any:
        """Return the parser that takes the body's media type, or None."""
        kind = request.content_type.partition(";")[0].strip().lower()
        return next((parser for parser in parsers if parser.media_type == kind), None)

    def select_renderer(
        self, request: Request, renderers: Iterable[BaseRenderer], format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        """Return the first renderer."""
        first = next(iter(renderers))
        return first, first.media_type or ""


class Endpoint(APIView):
    """A view of the API. ``read_scope`` and ``write_scope`` say what a token needs."""

    permission_classes = (ScopeAllows,)
    content_negotiation_class = OneFormat
    metadata_class = None
    http_method_names = ["get", "head", "post", "put", "delete"]
    read_scope: ClassVar[str] = Scope.READ
    write_scope: ClassVar[str] = Scope.ADMIN
    parameters: ClassVar[frozenset[str]] = frozenset()
    shown_once: ClassVar[tuple[str, ...]] = ()

    @cached_property
    def person(self) -> User:
        """Return who calls."""
        return cast(User, self.request.user)

    @cached_property
    def rights(self) -> Rights:
        """Return the caller's rights, read once: with the token, or by a query of their own."""
        found = Rights(self.person)
        held = getattr(self.request.auth, "held", None)
        if held is not None:
            found.__dict__["held"] = held
            if not getattr(self.request.auth, "is_deputy", True):
                found.__dict__["stands_in_for"] = ()
        return found

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Check who calls, then refuse query parameters that nobody would read."""
        super().initial(request, *args, **kwargs)
        self._use_zone()
        if "HTTP_TRANSFER_ENCODING" in request.META and not request.META.get("CONTENT_LENGTH"):
            raise LengthRequired
        _require_utf8(request.META.get("QUERY_STRING", ""))
        unknown = set(request.query_params) - self.parameters
        if unknown:
            raise Invalid(
                fields={
                    name[:60]: [{"code": "unknown_parameter", "detail": _("There is no such parameter.")}]
                    for name in sorted(unknown)
                }
            )

    def _use_zone(self) -> None:
        """Write the sentences of this answer in the zone of ``Time-Zone``, else in the caller's own."""
        named = self.request.headers.get("Time-Zone", "")
        zone = zone_named(named) or zone_of(self.request.user)
        if zone is not None:
            timezone.activate(zone)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Keep answers out of every cache on the way: they are one person's."""
        final = super().finalize_response(request, response, *args, **kwargs)
        final.headers.setdefault("Cache-Control", "no-store")
        return final

    def yes_or_no(self, name: str) -> bool | None:
        """Return what a query parameter says that is true or false, None where it is left out.

        Raises Invalid for anything else, which would otherwise answer with everybody's rows.
        """
        said = self.request.query_params.get(name)
        if said is None:
            return None
        if said.lower() not in ("true", "false"):
            raise Invalid(fields={name: _("Write true or false, or leave it out.")})
        return said.lower() == "true"

    def narrow(self, rows: QuerySet[T], filters: type[FilterSet]) -> QuerySet[T]:
        """Return the rows that the query parameters ask for, or raise Invalid naming the others."""
        form = filters(data=self.request.query_params, queryset=rows)
        if not form.is_valid():
            raise Invalid(fields={name: [str(e) for e in found] for name, found in form.errors.items()})
        found: QuerySet[T] = form.qs
        return found

    def take(self, shape: type[Body]) -> dict[str, Any]:
        """Return the body's values, or raise ValidationError naming every field that cannot be used."""
        return shape.read(self.request.data)

    def require_operator(self) -> None:
        """Raise Forbidden for anybody but an operator."""
        if not self.rights.is_operator:
            raise Forbidden(_("Only operators may do this."))

    def require_finance(self) -> None:
        """Raise Forbidden for anybody but finance."""
        if not self.rights.is_finance:
            raise Forbidden(_("Only finance may do this."))


def _require_utf8(query: str) -> None:
    """Raise UncleanText for bytes that are no UTF-8: Django would replace them without a word."""
    try:
        unquote_to_bytes(query).decode("utf-8")
    except UnicodeError as error:
        raise UncleanText from error
