from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from jsonschema import Draft202012Validator

from portal.accounts.services import create_token
from tests.portal.builders import World
from tests.portal.conftest import world  # noqa: F401
from tests.portal.shared import shared  # noqa: F401


class Caller:
    """Calls the API as one person, with a token of one scope, and decodes what comes back."""

    def __init__(self, secret: str = "") -> None:
        self.client = Client(headers={"Authorization": f"Bearer {secret}"} if secret else None)

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the response; ``body`` goes as JSON, bytes and text as they are."""
        path = path.removeprefix("http://testserver")
        at = path if path.startswith("/") else f"/api/v1/{path}"
        more: dict[str, Any] = {"headers": headers} if headers else {}
        if body is not None or method in ("POST", "PUT"):
            more |= {"data": {} if body is None else body, "content_type": "application/json"}
        return self.client.generic(method, at, **_raw(more))

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.call("PUT", path, body, **headers)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)


def _raw(more: dict[str, Any]) -> dict[str, Any]:
    data = more.get("data")
    if data is not None and not isinstance(data, (str, bytes)):
        more["data"] = json.dumps(data)
    return more


@pytest.fixture(autouse=True)
def _gateway(settings: Any) -> None:
    settings.GATEWAYS = [":8001"]
    settings.APPS_DOMAIN = "*.apps.example.net"


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


@pytest.fixture(scope="session")
def openapi() -> Any:
    """The schema as it is served."""
    from drf_spectacular.generators import SchemaGenerator

    return SchemaGenerator().get_schema(request=None, public=True)


@pytest.fixture
def answer_fits(openapi: Any) -> Callable[[Any, Any], None]:
    """Return a check of an answer against the schema: described status, and a body of the described shape."""

    def check(route: Any, answer: Any) -> None:
        path = next(p for p in openapi["paths"] if _matches(p, route.path))
        described = openapi["paths"][path][route.method.lower()]["responses"][str(answer.status_code)]
        if "content" not in described or any(media.startswith("text/") for media in described["content"]):
            return
        (media,) = described["content"].values()
        schema = {**media["schema"], "components": _strict(openapi["components"])}
        Draft202012Validator(schema).validate(answer.json())

    return check


def _matches(described: str, path: str) -> bool:
    left, right = described.removeprefix("/api/v1/").split("/"), path.split("/")
    return len(left) == len(right) and all(
        (a.startswith("{") == b.startswith("{") and (a.startswith("{") or a == b))
        or (a.startswith("{") and not b.startswith("{") and "role" in a)
        for a, b in zip(left, right, strict=True)
    )


def _strict(components: Any) -> Any:
    """Return the components with no room for fields that are not described."""
    shapes = {
        name: {**shape, "additionalProperties": False} if "properties" in shape else shape
        for name, shape in components["schemas"].items()
    }
    return {**components, "schemas": shapes}
