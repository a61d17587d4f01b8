"""What a token may do: one rule for every view, from its method and the scope the view names."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from portal.accounts.models import ApiToken, Scope
from portal.api.errors import ScopeMissing

_IMPLIES = {
    Scope.READ: {Scope.READ, Scope.LEASE_WRITE, Scope.ADMIN},
    Scope.LEASE_WRITE: {Scope.LEASE_WRITE, Scope.ADMIN},
    Scope.ADMIN: {Scope.ADMIN},
}


class ScopeAllows(BasePermission):
    """Signed in, and with a scope that covers the call. A browser session has every scope of its owner."""

    def has_permission(self, request: Request, view: Any) -> bool:
        """Return False for nobody; raise ScopeMissing for a token that was made for less."""
        if not request.user.is_authenticated:
            return False
        if isinstance(request.auth, ApiToken):
            needed = view.read_scope if request.method in SAFE_METHODS else view.write_scope
            if not _IMPLIES[needed] & set(request.auth.scopes):
                raise ScopeMissing(f"This call needs a token with the scope “{needed}”.", scope=str(needed))
        return True
