"""What schemathesis makes of the OpenAPI document, sound and unsound, sent with every role's token: never a 5xx.

Only with the group ``hostile``: ``make hostile``.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.api.scene import scene
from tests.hostile.plenty import SEED, Surface
from tests.hostile.test_api import PEOPLE
from tests.portal.builders import World

schemathesis = pytest.importorskip("schemathesis", reason="comes with the group hostile: make hostile")


def test_nothing_that_the_schema_allows_or_forbids_answers_with_a_5xx(world: World, openapi: Any) -> None:
    from requests import Request
    from schemathesis import GenerationMode

    objects = scene(world)
    secrets = [world.token(name) for name in PEOPLE] + [world.token("bob", "read"), ""]
    schema = schemathesis.openapi.from_dict(openapi)
    operations = [found.ok() for found in schema.get_all_operations()]
    client = Client(raise_request_exception=False)

    with Surface("api by schemathesis", 0.05) as surface:
        each = -(-surface.count // (2 * len(operations)))

        def throw(case: Any, secret: str, is_known: bool) -> None:
            if is_known and case.path_parameters:
                case.path_parameters = {
                    name: objects.get(_OBJECTS.get(name, name), value)
                    for name, value in case.path_parameters.items()
                }
            sent = Request(**case.as_transport_kwargs(base_url="http://testserver")).prepare()
            headers = {name: value for name, value in sent.headers.items() if name.lower() not in _OWN}
            if secret:
                headers["Authorization"] = f"Bearer {secret}"
            kind = sent.headers.get("Content-Type", "application/json")
            path = sent.path_url
            with transaction.atomic():
                answer = client.generic(
                    sent.method, path, sent.body or b"", content_type=kind, headers=headers
                )
                transaction.set_rollback(True)
            told = (sent.method, path[:200], headers, sent.body)
            surface.note(answer.status_code, told, is_wrong=answer.status_code >= 500, told=answer.content)

        for number, operation in enumerate(operations):
            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                many = settings(
                    max_examples=each, deadline=None, database=None, phases=[Phase.generate],
                    suppress_health_check=list(HealthCheck),
                )  # fmt: skip
                cases = operation.as_strategy(generation_mode=mode)
                seed(SEED + number)(many(given(cases, st.sampled_from(secrets), st.booleans())(throw)))()
        # Where a call takes nothing there is little to make up: the rest goes to the others.
        surface.count = min(surface.count, surface.answers.total())


_OWN = {"content-type", "content-length", "authorization", "host"}
_OBJECTS = {
    "slug": "team",
    "name": "node",
    "uid": "lease",
    "uuid": "device",
    "username": "member",
    "number": "policy",
}
