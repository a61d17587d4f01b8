"""Passkeys beside the app: made with the password, used at the second step, bound to one origin, counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client
from django.utils import timezone
from environ import Env

from portal.accounts.sign_in_attempts import SECOND_STEP
from portal.audit.models import AuditEntry
from portal.common.environment import read_origin
from portal.common.errors import Conflict, Invalid, NotFound
from portal.second_factor import passkeys, services
from portal.second_factor.models import Passkey
from tests.authenticator import SoftKey
from tests.cli.conftest import Berth, berth, home, one_connection  # noqa: F401
from tests.portal.builders import PASSWORD, World
from tests.web.test_second_factor import is_in, sign_in, turned_on

pytestmark = pytest.mark.django_db
ORIGIN, HOST = "https://berth.example.org", "berth.example.org"


@pytest.fixture(autouse=True)
def origin(settings: Any) -> None:
    """Bind passkeys to a name."""
    settings.PASSKEY_ORIGIN = ORIGIN


@pytest.fixture
def key(world: World) -> SoftKey:
    """A security key of bob's, who has an app too."""
    bob, now, made = world.user("bob"), timezone.now(), SoftKey(ORIGIN, HOST)
    turned_on(bob, now - timedelta(hours=1))
    asked = passkeys.ask_to_make(bob)
    passkeys.add_passkey(
        bob, name="ring", answer=made.make(asked.options), challenge=asked.challenge, now=now
    )
    return made


def asked(world: World) -> passkeys.PasskeyQuestion:
    found = passkeys.ask_to_use(world.user("bob"))
    assert found is not None
    return found


def use(world: World, answer: str, question: passkeys.PasskeyQuestion) -> None:
    passkeys.use_passkey(world.user("bob"), answer=answer, challenge=question.challenge, now=timezone.now())


def test_on_pages_from_making_it_to_removing_it(world: World) -> None:
    turned_on(world.user("bob"), timezone.now() - timedelta(hours=1))
    here, there, made = Client(), Client(), SoftKey(ORIGIN, HOST)
    here.force_login(world.user("bob"))

    refused = here.post("/second-factor/passkeys/begin/", {"name": "ring", "password": "not it"})
    begun = here.post("/second-factor/passkeys/begin/", {"name": "ring", "password": PASSWORD})
    options = begun.context["question"].options
    kept = here.post("/second-factor/passkeys/add/", {"answer": made.make(options)}, follow=True)

    assert refused.status_code == 422
    assert "That is not your password." in refused.text
    assert 'data-passkey="create"' in begun.text
    assert "The passkey is kept." in kept.text
    assert "Not used yet" in kept.text
    assert sign_in(there, "bob", "/leases/")["Location"] == "/second-step/"
    question = there.get("/second-step/").context["question"]
    assert there.post("/second-step/", {"answer": made.use(question.options)})["Location"] == "/leases/"
    assert is_in(there)
    row = Passkey.objects.get()
    assert here.post(f"/second-factor/passkeys/{row.pk}/remove/", {"password": "not it"}).status_code == 422
    gone = here.post(f"/second-factor/passkeys/{row.pk}/remove/", {"password": PASSWORD}, follow=True)
    assert "The passkey is removed." in gone.text
    assert not Passkey.objects.exists()
    actions = AuditEntry.objects.filter(action__startswith="second_factor.passkey").order_by("id")
    assert [row.action.rpartition("_")[2] for row in actions] == ["added", "removed"]


def test_a_code_still_lets_in_and_an_answer_counts_once(world: World, key: SoftKey) -> None:
    client = Client()
    sign_in(client, "bob")
    question = client.get("/second-step/").context["question"]
    answer = key.use(question.options)
    wrong = client.post("/second-step/", {"answer": "{}"})  # uses up what was asked
    late = client.post("/second-step/", {"answer": answer})

    assert wrong.status_code == 422
    assert "This passkey is not right." in wrong.text
    assert late.status_code == 422
    assert not is_in(client)
    bob = world.user("bob")
    assert (
        services.check(bob, services.renew_codes(bob, now=timezone.now())[0], now=timezone.now())
        == "recovery"
    )


WRONG: dict[str, Callable[[SoftKey, passkeys.PasskeyQuestion], str]] = {
    "another origin": lambda key, q: key.at("https://evil.example.org", HOST).use(q.options),
    "another host": lambda key, q: key.at(ORIGIN, "evil.example.org").use(q.options),
    "plain http": lambda key, q: key.at("http://berth.example.org", HOST).use(q.options),
    "another key": lambda key, q: SoftKey(ORIGIN, HOST, 0, key.handle).use(q.options),
    "unknown credential": lambda _key, q: SoftKey(ORIGIN, HOST).use(q.options),
    "another challenge": lambda key, _q: key.use(json.dumps({"challenge": "AAAA"})),
    "a registration": lambda key, q: key.make(q.options),
    "no answer": lambda _key, _q: "",
    "no JSON": lambda _key, _q: "{",
    "a list": lambda _key, _q: "[1]",
    "numbers": lambda _key, _q: '{"id": 1, "rawId": 2, "response": 3, "type": 4}',
    "very long": lambda _key, _q: "x" * 30_000,
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_refused(world: World, key: SoftKey, case: str) -> None:
    question = asked(world)

    with pytest.raises(Invalid):
        use(world, WRONG[case](key, question), question)

    assert Passkey.objects.get().last_used_at is None


def test_anothers_passkey_lets_nobody_else_in(world: World, key: SoftKey) -> None:
    alice = world.user("alice")
    turned_on(alice, timezone.now() - timedelta(hours=1))
    question = asked(world)

    with pytest.raises(Invalid):
        passkeys.use_passkey(
            alice, answer=key.use(question.options), challenge=question.challenge, now=timezone.now()
        )
    with pytest.raises(NotFound):
        passkeys.remove_passkey(alice, Passkey.objects.get().pk, now=timezone.now())


def test_a_counter_that_goes_back_is_that_of_a_copy(world: World, key: SoftKey) -> None:
    for _n in range(2):
        question = asked(world)
        use(world, key.use(question.options), question)
    key.count = 0
    question = asked(world)

    with pytest.raises(Invalid) as refused:
        use(world, key.use(question.options), question)

    assert "copied" in refused.value.fields["code"]
    assert AuditEntry.objects.filter(action="second_factor.passkey_copied", target="bob").exists()
    assert Passkey.objects.get().sign_count == 2


def test_a_key_that_does_not_count_is_used_again(world: World, key: SoftKey) -> None:
    for _n in range(2):
        key.count, question = -1, asked(world)
        use(world, key.use(question.options), question)


def test_tries_are_counted_with_those_of_codes(world: World, key: SoftKey) -> None:
    client = Client()
    sign_in(client, "bob")
    answers = [
        client.post("/second-step/", {"answer": "{}"}).status_code for _n in range(SECOND_STEP.most + 1)
    ]

    assert answers == [422] * SECOND_STEP.most + [429]


def test_one_is_made_only_beside_an_app_where_they_are_offered_and_once(
    world: World, key: SoftKey, settings: Any
) -> None:
    bob, now = world.user("bob"), timezone.now()
    with pytest.raises(Conflict, match="app first"):
        passkeys.ask_to_make(world.user("alice"))
    again = passkeys.ask_to_make(bob)
    with pytest.raises(Conflict, match="already"):
        passkeys.add_passkey(
            bob, name="x", answer=key.make(again.options), challenge=again.challenge, now=now
        )
    for name in ("", "two\nlines", "x" * 61):
        with pytest.raises(Invalid):
            passkeys.add_passkey(bob, name=name, answer="", challenge=again.challenge, now=now)
    with pytest.raises(Invalid):
        passkeys.add_passkey(bob, name="x", answer="{}", challenge=again.challenge, now=now)

    settings.PASSKEY_ORIGIN = ""
    assert passkeys.ask_to_use(bob) is None
    with pytest.raises(Conflict, match="not set up"):
        passkeys.ask_to_make(bob)


def test_turning_it_off_and_a_reset_forget_passkeys(world: World, key: SoftKey) -> None:
    services.reset("bob", actor=world.user("operator"), rights=world.rights("operator"), now=timezone.now())

    assert not Passkey.objects.exists()


def test_passkeys_on_the_command_line(world: World, key: SoftKey, berth: Berth) -> None:  # noqa: F811
    pk = str(Passkey.objects.get().pk)

    assert "ring" in berth("second-factor", "passkeys").output
    assert "ring" not in berth("second-factor", "passkeys", who="alice").output
    assert berth("second-factor", "remove-passkey", pk, who="alice", typed=f"{PASSWORD}\n").exit_code == 1
    assert berth("second-factor", "remove-passkey", pk, typed="wrong\n").exit_code == 1
    assert berth("second-factor", "remove-passkey", pk, typed=f"{PASSWORD}\n").exit_code == 0
    assert not Passkey.objects.exists()


@pytest.mark.parametrize(
    "text",
    [
        "berth.example.org",
        "http://berth.example.org",
        "https://127.0.0.1",
        "https://a@b.org",
        "https://b.org/x",
    ],
)
def test_an_unsafe_origin_is_refused_at_start(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORIGIN", text)

    with pytest.raises(ImproperlyConfigured, match="no origin for passkeys"):
        read_origin(Env(), "ORIGIN")


@pytest.mark.parametrize(
    "text", ["", "https://berth.example.org", "https://berth.example.org:8443", "http://localhost:8000"]
)
def test_a_safe_origin_is_taken(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORIGIN", text)

    assert read_origin(Env(), "ORIGIN") == text
