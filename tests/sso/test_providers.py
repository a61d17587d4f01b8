"""Setting up single sign-on: by page, API and command line alike the same service."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from portal.audit.models import AuditEntry
from portal.common.errors import Forbidden, Invalid
from portal.sso.models import ExternalIdentity, GroupRule, IdentityProvider
from portal.sso.openid import ProviderFault, is_safe
from portal.sso.providers import ProviderSpec, RuleSpec, add_provider, change_provider, client_at
from portal.sso.signing_in import admit, person_of
from portal.teams.models import Membership, Role
from tests.portal.builders import World
from tests.sso.provider import CLIENT, SECRET, FakeProvider
from tests.web.conftest import SignedIn


def as_operator(world: World) -> dict[str, Any]:
    return {"actor": world.user("operator"), "rights": world.rights("operator"), "now": world.now}


def test_an_operator_sets_one_up_on_an_empty_page(
    world: World, lab: FakeProvider, signed_in: SignedIn
) -> None:
    operator = signed_in("operator")
    assert "No provider yet" in operator.get("/operations/single-sign-on/").content.decode()
    fields = {
        "name": "The lab", "slug": "lab", "protocol": "openid", "issuer": lab.issuer, "client_id": CLIENT,
        "secret": SECRET,
        "groups_claim": "realm.roles", "admission": "groups", "is_active": "on",
        "rules": "researcher perception ml people\n\n approver vision cn=leads,ou=ml\n",
    }  # fmt: skip
    refused = operator.post(
        "/operations/single-sign-on/new/",
        {**fields, "rules": "researcher nowhere ml", "client_id": "x" * 201},
    )
    assert refused.status_code == 422
    assert not IdentityProvider.objects.exists()
    wrong = operator.post("/operations/single-sign-on/new/", {**fields, "rules": "researcher nowhere ml"})
    assert "there is no team “nowhere”" in wrong.content.decode()

    assert (
        operator.post("/operations/single-sign-on/new/", fields)["Location"] == "/operations/single-sign-on/"
    )

    stored = IdentityProvider.objects.get(slug="lab")
    assert set(GroupRule.objects.values_list("group", "team__slug", "role")) == {
        ("ml people", "perception", "researcher"), ("cn=leads,ou=ml", "vision", "approver"),
    }  # fmt: skip
    page = operator.get("/operations/single-sign-on/lab/").content.decode()
    assert "approver vision cn=leads,ou=ml" in page
    assert "http://testserver/sign-in/lab/back/" in page
    assert SECRET not in page
    assert SECRET.encode() not in bytes(stored.sealed_secret)
    assert not AuditEntry.objects.filter(detail__icontains=SECRET).exists()
    # Another secret only where one is written; a change that is refused changes nothing.
    operator.post("/operations/single-sign-on/lab/", {**fields, "secret": "", "name": "The big lab"})
    assert client_at(IdentityProvider.objects.get(), "x").secret == SECRET
    assert IdentityProvider.objects.get().name == "The big lab"
    assert signed_in("alice").get("/operations/single-sign-on/").status_code == 403
    assert signed_in("alice").post("/operations/single-sign-on/lab/remove/").status_code == 403
    assert operator.post("/operations/single-sign-on/lab/remove/").status_code == 302
    assert not IdentityProvider.objects.exists()
    assert "Sign in with" not in Client().get("/sign-in/").content.decode()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"issuer": "http://sso.example.org"}, "issuer"),
        ({"issuer": "https://["}, "issuer"),
        ({"issuer": "http://127.0.0.1:9"}, "issuer"),
        ({"rules": ()}, "rules"),
        ({"rules": (RuleSpec("g", "perception", "king"),)}, "rules"),
        ({"rules": (RuleSpec("g" * 201, "perception", "researcher"),)}, "rules"),
        ({"admission": "nobody"}, "admission"),
        ({"secret": ""}, "secret"),
        ({"name": " "}, "name"),
    ],
)
def test_what_cannot_work_is_refused_with_the_field(
    world: World, lab: FakeProvider, change: dict[str, Any], field: str
) -> None:
    good = {
        "name": "The lab", "issuer": lab.issuer, "client_id": CLIENT, "secret": SECRET,
        "rules": (RuleSpec("g", "perception", "researcher"),),
    }  # fmt: skip
    with pytest.raises(Invalid) as refused:
        add_provider(slug="lab", spec=ProviderSpec(**{**good, **change}), **as_operator(world))
    assert set(refused.value.fields) == {field}
    assert not IdentityProvider.objects.exists()


def test_only_operators_and_another_issuer_means_other_people(
    world: World, lab: FakeProvider, provider: IdentityProvider
) -> None:
    spec = ProviderSpec(name="x", issuer=lab.issuer, client_id=CLIENT, secret=SECRET, admission="everybody")
    with pytest.raises(Forbidden):
        add_provider(
            slug="x", spec=spec, actor=world.user("alice"), rights=world.rights("alice"), now=world.now
        )
    admitted = admit(provider, person_of({"sub": "1", "groups": "ml people"}, "groups"), now=world.now)
    assert admitted.is_new
    change_provider(slug="lab", spec=spec, **as_operator(world))
    assert ExternalIdentity.objects.count() == 1

    assert Membership.objects.filter(user=admitted.user).exists()
    moved = lab.issuer.replace("127.0.0.1", "localhost")
    lab.answers["/.well-known/openid-configuration"] = (200, _discovery(lab, moved))
    bare = ProviderSpec(**{**_values(spec), "issuer": moved, "secret": ""})
    with pytest.raises(Invalid) as refused:  # the secret there is is for nobody else
        change_provider(slug="lab", spec=bare, **as_operator(world))
    assert set(refused.value.fields) == {"secret"}
    change_provider(slug="lab", spec=ProviderSpec(**{**_values(spec), "issuer": moved}), **as_operator(world))

    assert not Membership.objects.filter(user=admitted.user).exists()
    assert not ExternalIdentity.objects.exists()


def test_the_last_operator_stays_one(world: World, lab: FakeProvider, provider: IdentityProvider) -> None:
    spec = ProviderSpec(
        name="x", issuer=lab.issuer, client_id=CLIENT,
        rules=(RuleSpec("admins", world.team("northwind").slug, "operator"),),
    )  # fmt: skip
    change_provider(slug="lab", spec=spec, **as_operator(world))
    root = IdentityProvider.objects.get()
    boss = admit(root, person_of({"sub": "boss", "groups": ["admins"]}, "groups"), now=world.now).user
    Membership.objects.filter(role=Role.OPERATOR).exclude(user=boss).delete()

    admit(root, person_of({"sub": "boss", "groups": []}, "groups"), now=world.now)

    assert Membership.objects.filter(user=boss, role=Role.OPERATOR).exists()


def test_what_is_no_list_of_groups_is_not_known() -> None:
    for claims in (
        {"hasgroups": True},
        {"groups": None},
        {"groups": {"a": 1}},
        {"_claim_names": {"groups": "src1"}},
    ):
        assert person_of({"sub": "1", **claims}, "groups").groups is None
    assert person_of({"sub": "1", "_claim_names": {"more": "src1"}}, "groups").groups == frozenset()
    assert person_of({"sub": "1", "groups": ["a", 5, "", "x" * 201]}, "groups").groups == {"a"}
    assert person_of({"sub": "1", "realm": {"roles": ["a"]}}, "realm.roles").groups == {"a"}
    assert person_of({"sub": "1", "https://x.example/groups": ["a"]}, "https://x.example/groups").groups == {
        "a"
    }


def test_a_secret_under_a_lost_key_is_said(provider: IdentityProvider, settings: Any) -> None:
    settings.PORTAL_KEY, settings.PORTAL_KEY_BEFORE = "k" * 60, ""
    with pytest.raises(ProviderFault, match="set it again"):
        client_at(provider, "x")


def test_only_https_or_this_machine_is_safe() -> None:
    assert is_safe("https://sso.example.org/x")
    assert is_safe("http://[::1]:8080")
    assert not any(
        map(is_safe, ("http://sso.example.org", "file:///etc/passwd", "https://", "//x", "https://["))
    )


def _values(spec: ProviderSpec) -> dict[str, Any]:
    return {name: getattr(spec, name) for name in ProviderSpec.__slots__}


def _discovery(lab: FakeProvider, issuer: str) -> bytes:
    return json.dumps({**lab.discovery(), "issuer": issuer}).encode()
