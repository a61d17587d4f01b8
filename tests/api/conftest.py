from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.accounts.services import create_token
from tests.portal.builders import World
from tests.portal.conftest import world  # noqa: F401


class Caller:
    """Calls the API as one person, with a token of one scope, and decodes what comes back."""

    def __init__(self, secret: str = "") -> None:
        self.client = Client(headers={"Authorization": f"Bearer {secret}"} if secret else None)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the response; ``body`` goes as JSON, bytes and text as they are."""
        at = path if path.startswith("/") else f"/api/v1/{path}"
        more: dict[str, Any] = {"headers": headers} if headers else {}
        if body is not None or method in ("POST", "PUT"):
            more |= {"data": {} if body is None else body, "content_type": "application/json"}
        return self.client.generic(method, at, **_raw(more)) if method else None

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("PUT", path, body, **headers)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)


def _raw(more: dict[str, Any]) -> dict[str, Any]:
    import json

    data = more.get("data")
    if data is not None and not isinstance(data, (str, bytes)):
        more["data"] = json.dumps(data)
    return more


@pytest.fixture
def calls(world: World) -> Callable[..., Caller]:  # noqa: F811
    """Return a caller by name, ``calls("bob")``, or nobody with ``calls("")``."""

    def make(name: str = "", *scopes: str) -> Caller:
        if not name:
            return Caller()
        row = create_token(
            user=world.user(name), name="test", scopes=list(scopes or ("admin",)), days=30, now=timezone.now()
        )
        return Caller(row.secret)

    return make
