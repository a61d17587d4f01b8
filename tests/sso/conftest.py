from __future__ import annotations

from collections.abc import Iterator

import pytest

from portal.sso.models import IdentityProvider
from portal.sso.providers import ProviderSpec, RuleSpec, add_provider
from portal.teams.selectors import Rights
from tests.portal.builders import World
from tests.portal.conftest import world  # noqa: F401
from tests.sso.provider import CLIENT, SECRET, FakeProvider
from tests.web.conftest import clean_cache, signed_in  # noqa: F401


@pytest.fixture(scope="session")
def provider_server() -> Iterator[FakeProvider]:
    """One provider for all tests: its key takes a while to make."""
    server = FakeProvider()
    yield server
    server.close()


@pytest.fixture
def lab(provider_server: FakeProvider) -> FakeProvider:
    """The provider without the faults of another test."""
    server = provider_server
    server.signing_key, server.change, server.answers = server.key, lambda claims: None, {}
    server.claims, server.userinfo, server.methods, server.codes = {}, {}, ["client_secret_basic"], {}
    return server


@pytest.fixture
def provider(world: World, lab: FakeProvider) -> IdentityProvider:  # noqa: F811
    """The provider as an operator set it up: researchers by group, and one group of approvers."""
    operator = world.user("operator")
    spec = ProviderSpec(
        name="The lab", issuer=lab.issuer, client_id=CLIENT, secret=SECRET,
        rules=(
            RuleSpec("ml people", "perception", "researcher"),
            RuleSpec("ml leads", "perception", "researcher"),
            RuleSpec("ml leads", "vision", "approver"),
        ),
    )  # fmt: skip
    return add_provider(slug="lab", spec=spec, actor=operator, rights=Rights(operator), now=world.now)
