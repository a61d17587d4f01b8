"""Addresses under /api/ that do not exist: the same 404 as an object out of sight."""

from __future__ import annotations

from django.urls import Resolver404, resolve
from django.utils.translation import gettext as _
from rest_framework.request import Request

from portal.api.endpoint import Endpoint
from portal.common.errors import NotFound


class UnknownAddress(Endpoint):
    """No such address."""

    schema = None

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        """Answer before anything is checked: there is nothing to protect."""
        raise _not_found(request.path)


def _not_found(path: str) -> NotFound:
    """Return a 404 that knows the commonest slip: the missing slash at the end."""
    try:
        match = resolve(path + "/") if not path.endswith("/") else None
    except Resolver404:
        match = None
    if match is not None and match.url_name != "nothing":
        return NotFound(_("Addresses here end with a slash: use %(path)s/") % {"path": path[:200]})
    return NotFound()
