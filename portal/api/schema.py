"""What drf-spectacular cannot guess."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class BearerToken(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """How the schema shows our tokens."""

    target_class = "portal.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        """Return the scheme: a bearer token in the Authorization header."""
        return {"type": "http", "scheme": "bearer", "bearerFormat": "bth_…"}
