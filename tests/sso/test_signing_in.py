"""Single sign-on as a browser meets it, against a provider that answers on loopback."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from joserfc.jwk import RSAKey

from portal.accounts.models import User
from portal.accounts.sign_in_attempts import ADDRESS
from portal.audit.models import AuditEntry
from portal.sso.models import ExternalIdentity, GivenRole, IdentityProvider
from portal.teams.models import Membership, Role
from tests.portal.builders import PASSWORD, World
from tests.sso.provider import Claims, FakeProvider
from tests.web.conftest import SignedIn

DANA: Claims = {
    "sub": "7f3a", "preferred_username": "dana@example.org", "name": "Dana\x00 \u202eD.", "email": "dana@example.org",
    "groups": ["ml people", "others"],
}  # fmt: skip


def begin(client: Client, **fields: str) -> str:
    """Return where the portal sends the browser."""
    page = client.post("/sign-in/lab/", fields)
    assert page.status_code == 200, page["Location"]
    found = re.search(r'http-equiv="refresh" content="0;url=([^"]+)"', page.content.decode())
    assert found is not None
    return html.unescape(found[1])


def come(client: Client, lab: FakeProvider, claims: Claims, **fields: str) -> Any:
    """Sign in at the provider as somebody and come back; returns the answer there."""
    back = lab.code_for(begin(client, **fields), claims)
    return client.get("/sign-in/lab/back/", back)


def roles(user: User) -> set[tuple[str, str]]:
    return {(row.team.slug, row.role) for row in Membership.objects.filter(user=user).select_related("team")}


def test_groups_make_an_account_give_roles_and_take_them_again(
    provider: IdentityProvider, lab: FakeProvider, world: World
) -> None:
    client = Client()
    assert "Sign in with The lab" in client.get("/sign-in/").content.decode()

    answer = come(client, lab, DANA, next="/leases/", zone="Asia/Shanghai")

    assert (answer.status_code, answer["Location"]) == (302, "/leases/")
    dana = User.objects.get(username="dana")
    assert (dana.display_name, dana.email, dana.time_zone) == ("Dana D.", "dana@example.org", "Asia/Shanghai")
    assert not dana.has_usable_password()
    assert roles(dana) == {("perception", Role.RESEARCHER)}
    assert client.get("/leases/").status_code == 200

    # Somebody gives a role by hand; the groups change: only what the groups gave follows them.
    Membership.objects.create(
        team=world.team("language"), user=dana, role=Role.RESEARCHER, created_at=world.now
    )
    come(Client(), lab, {**DANA, "groups": ["ml leads"]})
    assert roles(dana) == {
        ("perception", Role.RESEARCHER), ("vision", Role.APPROVER), ("language", Role.RESEARCHER),
    }  # fmt: skip

    # A provider that keeps the groups elsewhere takes nothing away; who is in none any more loses what they gave.
    no_word: Claims = {**DANA, "_claim_names": {"groups": "src1"}}
    del no_word["groups"]
    told = Client()
    come(told, lab, no_word)
    assert "did not say in which groups you are" in told.get("/").content.decode()
    assert len(roles(dana)) == 3
    gone = Client()
    left_out = {name: value for name, value in DANA.items() if name != "groups"}
    answer = come(gone, lab, left_out)
    assert answer["Location"] == "/sign-in/"
    assert "You are in no group of The lab" in gone.get("/sign-in/").content.decode()
    assert roles(dana) == {("language", Role.RESEARCHER)}
    assert not GivenRole.objects.exists()
    assert User.objects.filter(username__startswith="dana").count() == 1
    said = list(AuditEntry.objects.filter(target="dana").order_by("id").values_list("action", flat=True))
    assert said[:3] == ["account.made", "member.added", "sign_in"]
    assert said.count("member.removed") == 2


def test_a_name_that_somebody_has_is_not_theirs(
    provider: IdentityProvider, lab: FakeProvider, world: World
) -> None:
    come(Client(), lab, {**DANA, "sub": "b2", "preferred_username": "bob", "email": world.user("bob").email})

    assert ExternalIdentity.objects.get(subject="b2").user.username == "bob-2"


def test_an_account_is_connected_only_by_its_own_person(
    provider: IdentityProvider, lab: FakeProvider, world: World, signed_in: SignedIn
) -> None:
    bob = signed_in("bob")
    answer = come(bob, lab, {**DANA, "groups": ["ml leads"]})
    assert answer["Location"] == "/sessions/"
    assert "signs you in from now on" in bob.get("/sessions/").content.decode()

    assert come(Client(), lab, {**DANA, "groups": ["ml leads"]})["Location"] == "/"
    assert ("vision", Role.APPROVER) in roles(world.user("bob"))
    charlie = signed_in("charlie")
    come(charlie, lab, DANA)
    assert "Another account here is connected" in charlie.get("/sessions/").content.decode()

    bob.post("/sign-in/lab/leave/")
    assert not ExternalIdentity.objects.exists()
    assert roles(world.user("bob")) == {("perception", Role.RESEARCHER)}


def test_a_closed_account_stays_closed(provider: IdentityProvider, lab: FakeProvider) -> None:
    come(Client(), lab, DANA)
    User.objects.filter(username="dana").update(is_active=False)
    client = Client()

    assert come(client, lab, DANA)["Location"] == "/sign-in/"
    assert "This account is closed" in client.get("/sign-in/").content.decode()


def _other_key(lab: FakeProvider) -> None:
    lab.signing_key = RSAKey.generate_key(2048, {"kid": "one"})


def _no_keys(lab: FakeProvider) -> None:
    lab.answers["/keys"] = (200, b'{"keys": [{"kty": "oct", "k": "c2VjcmV0", "kid": "one"}, 5]}')


def _claim(name: str, value: Any) -> Callable[[FakeProvider], None]:
    def spoil(lab: FakeProvider) -> None:
        lab.change = lambda claims: claims.update({name: value})

    return spoil


def _answer(path: str, status: int, body: bytes) -> Callable[[FakeProvider], None]:
    return lambda lab: lab.answers.update({path: (status, body)})


@pytest.mark.parametrize(
    "spoil",
    [
        _other_key, _no_keys,
        _claim("nonce", "of another try"), _claim("aud", "somebody-else"), _claim("iss", "https://evil.example"),
        _claim("exp", 1_700_000_000), _claim("exp", float("inf")), _claim("azp", "somebody-else"),
        _claim("sub", 7), _claim("sub", "a\x00b"), _claim("sub", "x" * 256),
        _answer("/token", 200, b"{}"), _answer("/token", 200, b"[" * 100_000), _answer("/token", 500, b"{}"),
        _answer("/token", 200, b'{"id_token": "a.b.c"}'), _answer("/keys", 200, b"x" * 1_100_000),
        _answer("/userinfo", 200, b'{"sub": "somebody-else"}'), _answer("/userinfo", 200, b"\xff"),
        _answer("/.well-known/openid-configuration", 200, b'{"issuer": "https://evil.example"}'),
    ],
)  # fmt: skip
def test_an_answer_that_does_not_hold_lets_nobody_in(
    provider: IdentityProvider, lab: FakeProvider, spoil: Callable[[FakeProvider], None]
) -> None:
    client = Client()
    back = lab.code_for(begin(client), DANA)
    spoil(lab)

    answer = client.get("/sign-in/lab/back/", back)

    assert answer["Location"] == "/sign-in/"
    assert "could not be asked who you are" in client.get("/sign-in/").content.decode()
    assert not ExternalIdentity.objects.exists()
    assert client.get("/leases/").status_code == 302
    assert AuditEntry.objects.filter(action="sign_in.failed", target="lab").count() == 1


def test_a_try_counts_once_and_in_the_browser_that_began_it(
    provider: IdentityProvider, lab: FakeProvider
) -> None:
    client, other = Client(), Client()
    back = lab.code_for(begin(client), DANA)

    assert "began in another browser" in other.get("/sign-in/lab/back/", back, follow=True).content.decode()
    assert client.get("/sign-in/lab/back/", {**back, "state": "guessed"})["Location"] == "/sign-in/"
    assert client.get("/sign-in/lab/back/", back)["Location"] == "/"
    client.post("/sign-out/")
    assert client.get("/sign-in/lab/back/", back)["Location"] == "/sign-in/"
    denied = {"state": lab.code_for(begin(client), DANA)["state"], "error": "access_denied"}
    assert (
        "You did not sign in at The lab"
        in client.get("/sign-in/lab/back/", denied, follow=True).content.decode()
    )
    assert client.get("/sign-in/lab/").status_code == 405
    assert client.post("/sign-in/nowhere/").status_code == 404


def test_the_secret_in_the_body_where_a_provider_wants_it_there(
    provider: IdentityProvider, lab: FakeProvider
) -> None:
    lab.methods = ["client_secret_post"]

    assert come(Client(), lab, DANA)["Location"] == "/"


def test_tries_at_a_provider_are_counted_by_place_with_those_by_password(
    provider: IdentityProvider, lab: FakeProvider, world: World
) -> None:
    for _again in range(ADDRESS.most):  # what lets somebody in is given back
        assert come(Client(), lab, DANA)["Location"] == "/"
    answers = [Client().post("/sign-in/lab/") for _n in range(ADDRESS.most + 1)]

    assert [one.status_code for one in answers[-2:]] == [200, 429]
    assert "Too many tries" in answers[-1].text
    assert 0 < int(answers[-1]["Retry-After"]) <= ADDRESS.window_s
    assert Client().post("/sign-in/", {"username": "bob", "password": PASSWORD}).status_code == 429
    refused = AuditEntry.objects.filter(action="sign_in.failed", detail__why="too many tries")
    assert refused.filter(target="lab").count() == 1
    # Who is signed in connects their account all the same.
    bob = Client()
    bob.force_login(world.user("bob"))
    assert bob.post("/sign-in/lab/", {"connect": "1"}).status_code == 200
