"""Sign-in by the password of a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ldap3
import pytest
from django.db import IntegrityError, transaction
from django.test import Client

from portal.accounts.models import User
from portal.audit.models import AuditEntry
from portal.common.errors import Invalid, Unavailable
from portal.sso.directory import DirectoryClient, ask, is_safe_directory, person_by_password
from portal.sso.models import IdentityProvider, ProviderProtocol
from portal.sso.openid import ProviderFault
from portal.sso.passwords import by_directory
from portal.sso.providers import ProviderSpec, RuleSpec, add_provider, change_provider
from portal.teams.models import Membership
from portal.teams.selectors import Rights
from tests.portal.builders import World
from tests.sso.directories import (
    BASE,
    GROUPS,
    HAS_OPEN_LDAP,
    PEOPLE,
    SERVICE,
    SERVICE_PASSWORD,
    StandIn,
    dn_of,
    group_dn,
    open_ldap,
)

pytestmark = pytest.mark.django_db
ADA = PEOPLE["ada"]["password"]


def client(**told: Any) -> DirectoryClient:
    values = {
        "url": "ldap://127.0.0.1", "bind_dn": SERVICE, "secret": SERVICE_PASSWORD, "base_dn": BASE,
        "user_filter": "(uid={name})", "groups_attribute": "memberOf",
    }  # fmt: skip
    return DirectoryClient(**{**values, **told})


def spec(**told: Any) -> ProviderSpec:
    values: dict[str, Any] = {
        "name": "The staff directory", "protocol": "ldap", "issuer": "ldaps://ldap.example.org",
        "client_id": SERVICE, "secret": SERVICE_PASSWORD, "groups_claim": "memberOf", "base_dn": BASE,
        "user_filter": "(uid={name})",
        "rules": (
            RuleSpec("ml people", "perception", "researcher"),
            RuleSpec(group_dn("ml leads"), "vision", "approver"),
        ),
    }  # fmt: skip
    return ProviderSpec(**{**values, **told})


@pytest.fixture(autouse=True)
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    monkeypatch.setattr(ldap3, "Connection", StandIn)
    StandIn.said = []
    return StandIn.said


@pytest.fixture
def directory(world: World) -> IdentityProvider:
    operator = world.user("operator")
    return add_provider(slug="staff", spec=spec(), actor=operator, rights=Rights(operator), now=world.now)


def sign_in(name: str, password: str) -> tuple[Client, Any]:
    browser = Client()
    return browser, browser.post("/sign-in/", {"username": name, "password": password})


def test_first_sign_in_makes_an_account_with_the_roles_of_the_groups(directory: IdentityProvider):
    browser, answer = sign_in("ada", ADA)

    assert answer.status_code == 302
    user = User.objects.get(pk=browser.session["_auth_user_id"])
    assert (user.username, user.display_name, user.email) == ("ada", "Ada Example", "ada@example.org")
    assert not user.has_usable_password()
    held = set(Membership.objects.filter(user=user).values_list("team__slug", "role"))
    assert held == {("perception", "researcher"), ("vision", "approver")}


def test_second_sign_in_is_the_same_person_and_follows_the_groups(
    directory: IdentityProvider, monkeypatch: pytest.MonkeyPatch
):
    first, _answer = sign_in("ada", ADA)
    monkeypatch.setitem(GROUPS, "ml leads", ())

    second, _answer = sign_in("ada", ADA)

    assert first.session["_auth_user_id"] == second.session["_auth_user_id"]
    held = set(Membership.objects.filter(user__username="ada").values_list("team__slug", "role"))
    assert held == {("perception", "researcher")}


def test_name_that_somebody_has_here_is_not_their_account(world: World, directory: IdentityProvider):
    own = world.user("bob")

    browser, _answer = sign_in("bob", PEOPLE["bob"]["password"])

    assert int(browser.session["_auth_user_id"]) != own.pk
    assert User.objects.get(pk=browser.session["_auth_user_id"]).username == "bob-2"


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("ada", "not hers"),
        ("nobody", ADA),
        ("*", ADA),
        ("ada)(uid=*", ADA),
    ],
)
def test_wrong_names_and_passwords_let_nobody_in(directory: IdentityProvider, name: str, password: str):
    _browser, answer = sign_in(name, password)

    assert answer.status_code == 422
    assert "do not fit together" in answer.content.decode()
    assert not User.objects.filter(username__startswith="ada").exists()


@pytest.mark.parametrize(("name", "password"), [("ada", ""), ("", ADA), ("ada", "a" * 1001), ("ada", "a\0b")])
def test_what_no_directory_can_mean_is_never_tried(stand_in: list[tuple[str, str]], name: str, password: str):
    assert person_by_password(client(), name, password) is None
    assert stand_in == []


def test_what_was_typed_is_escaped_in_the_filter(stand_in: list[tuple[str, str]]):
    person_by_password(client(), "a*)(b\\", "x")

    assert stand_in == [(BASE, "(uid=a\\2a\\29\\28b\\5c)")]


def test_whoever_is_in_no_group_with_a_rule_reads_so(directory: IdentityProvider):
    _browser, answer = sign_in("cleo", PEOPLE["cleo"]["password"])

    assert answer.status_code == 403
    assert "You are in no group of The staff directory" in answer.content.decode()
    assert AuditEntry.objects.filter(action="sign_in.failed").exists()
    assert not User.objects.filter(username="cleo").exists()


def test_closed_account_stays_closed(world: World, directory: IdentityProvider):
    sign_in("ada", ADA)
    User.objects.filter(username="ada").update(is_active=False)

    browser, answer = sign_in("ada", ADA)

    assert answer.status_code == 403
    assert "_auth_user_id" not in browser.session


def test_local_password_goes_on_to_work_and_is_not_told_to_the_directory(
    world: World, directory: IdentityProvider, stand_in: list[tuple[str, str]]
):
    user = world.user("alice")
    user.set_password("a long one of her own")
    user.save()
    stand_in.clear()

    _browser, answer = sign_in("alice", "a long one of her own")

    assert answer.status_code == 302
    assert stand_in == []


def test_silent_directory_is_said_and_takes_nothing_from_local_accounts(
    directory: IdentityProvider, monkeypatch: pytest.MonkeyPatch
):
    def away(*_what: Any, **_how: Any) -> None:
        raise ldap3.core.exceptions.LDAPSocketOpenError("nobody there")

    monkeypatch.setattr(ldap3, "Connection", away)

    _browser, answer = sign_in("ada", ADA)

    assert answer.status_code == 503
    assert "The staff directory does not answer now" in answer.content.decode()
    with pytest.raises(Unavailable):
        by_directory("ada", ADA, now=directory.created_at)


def test_two_entries_of_one_name_let_nobody_in():
    with pytest.raises(ProviderFault, match="more than one entry"):
        person_by_password(client(user_filter="(|(uid={name})(uid=bob))"), "ada", ADA)


def test_entry_without_an_id_that_stays_lets_nobody_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("portal.sso.directory.SUBJECTS", ("objectGUID",))

    with pytest.raises(ProviderFault, match="know somebody again"):
        person_by_password(client(), "ada", ADA)


def test_person_has_groups_by_dn_and_by_name():
    found = person_by_password(client(), "ada", ADA)

    assert found is not None
    assert found.groups == {"ml people", "ml leads", group_dn("ml people"), group_dn("ml leads")}
    assert found.subject == "00000000-0000-0000-0000-000000000001"


def test_mail_that_is_none_is_left_out():
    found = person_by_password(client(), "cleo", PEOPLE["cleo"]["password"])

    assert found is not None
    assert (found.email, found.groups) == ("", frozenset())


@pytest.mark.parametrize(
    ("url", "is_safe"),
    [
        ("ldaps://ldap.example.org", True), ("ldap://ldap.example.org:3890/", True), ("ldapi:///var/run/x", False),
        ("https://ldap.example.org", False), ("ldap://", False), ("ldap://x:99999", False), ("ldap://u@x", False),
        ("ldap://x/dc=a", False), ("ldap://x?uid", False),
    ],
)  # fmt: skip
def test_addresses_of_directories(url: str, is_safe: bool):
    assert is_safe_directory(url) is is_safe


@pytest.mark.parametrize(
    ("told", "field"),
    [
        ({"issuer": "https://sso.example.org"}, "issuer"),
        ({"base_dn": ""}, "base_dn"),
        ({"user_filter": "(uid=ada)"}, "user_filter"),
        ({"user_filter": "uid={name}"}, "user_filter"),
        ({"user_filter": "((uid={name})"}, "user_filter"),
        ({"client_id": ""}, "client_id"),
        ({"protocol": "nis"}, "protocol"),
        ({"secret": "not it"}, "issuer"),
        ({"base_dn": "dc=nowhere"}, "issuer"),
    ],
)
def test_directory_that_cannot_serve_is_refused_by_field(world: World, told: dict[str, Any], field: str):
    operator = world.user("operator")

    with pytest.raises(Invalid) as refused:
        add_provider(slug="staff", spec=spec(**told), actor=operator, rights=Rights(operator), now=world.now)

    assert field in refused.value.fields
    assert not IdentityProvider.objects.exists()


def test_another_address_needs_the_password_again(world: World, directory: IdentityProvider):
    operator = world.user("operator")
    moved = spec(issuer="ldaps://elsewhere.example.org", secret="")

    with pytest.raises(Invalid) as refused:
        change_provider(slug="staff", spec=moved, actor=operator, rights=Rights(operator), now=world.now)

    assert set(refused.value.fields) == {"secret"}


def test_provider_keeps_its_protocol(world: World, directory: IdentityProvider):
    operator = world.user("operator")
    other = spec(protocol=ProviderProtocol.OPENID, issuer="https://sso.example.org")

    with pytest.raises(Invalid) as refused:
        change_provider(slug="staff", spec=other, actor=operator, rights=Rights(operator), now=world.now)

    assert set(refused.value.fields) == {"protocol"}


def test_database_refuses_a_directory_without_a_filter(directory: IdentityProvider):
    with pytest.raises(IntegrityError), transaction.atomic():
        IdentityProvider.objects.update(user_filter="(uid=ada)")


def test_directory_has_no_button_and_no_way_to_come_back(directory: IdentityProvider):
    page = Client().get("/sign-in/").content.decode()

    assert "Those of The staff directory" in page
    assert Client().post("/sign-in/staff/begin/").status_code == 404


def test_api_sets_a_directory_up_and_never_tells_its_password(world: World, directory: IdentityProvider):
    browser = Client()
    browser.force_login(world.user("operator"))

    answer = browser.get("/api/v1/identity-providers/staff/").json()

    assert (answer["protocol"], answer["base_dn"]) == ("ldap", BASE)
    assert SERVICE_PASSWORD not in str(answer)


@pytest.mark.deep
@pytest.mark.skipif(not HAS_OPEN_LDAP, reason="OpenLDAP (slapd) is not installed")
def test_real_directory_by_tls_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    with open_ldap(tmp_path) as (plain, safe, cert):
        for url in (plain, safe):
            at = client(url=url)
            monkeypatch.setenv("SSL_CERT_FILE", str(cert))
            ask(at)
            found = person_by_password(at, "ada", ADA)
            assert found is not None
            assert found.groups == {"ml people", "ml leads", group_dn("ml people"), group_dn("ml leads")}
            assert len(found.subject) == 36
            assert person_by_password(at, "ada", "not hers") is None
            assert person_by_password(at, "*", ADA) is None
            assert person_by_password(at, dn_of("ada"), ADA) is None
            with pytest.raises(ProviderFault, match="refuses the name"):
                ask(client(url=url, secret="not it"))
            with pytest.raises(ProviderFault, match="there is no"):
                ask(client(url=url, base_dn="dc=nowhere"))
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(ProviderFault, match="does not answer"):
            ask(client(url=safe))
        with pytest.raises(ProviderFault, match="does not answer"):
            ask(client(url="ldap://127.0.0.1:1"))
