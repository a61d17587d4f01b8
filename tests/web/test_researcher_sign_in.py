from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from portal.accounts.models import User
from tests.portal.builders import PASSWORD, World
from tests.web.conftest import SignedIn

SIGN_IN = "/sign-in/"
CLOSED = [
    reverse(f"web:{name}")
    for name in ("home", "request_new", "request_quote", "requests", "leases", "approvals")
]

NOT_OURS = [
    "abc", "a.b", "a/b", "./", "../leases/", "?next=abc", "#top", "%2F%2Fevil.example", " /leases/", "web:home",
    "https://evil.example/", "http://testserver/leases/", "//evil.example", "///evil.example", "/\\evil.example",
    "\\\\evil.example", "\\/evil.example", "/\t/evil.example", "/\n/evil.example", "/leases/\r\nSet-Cookie: a=b",
    "javascript:alert(1)", "data:text/html,x", "http://[", "//[", "/\x85", "模型", "/leases/ x",
    "/" + "x" * 3000, "/" + "模" * 1900, "x" * 20000,
]  # fmt: skip


def post(client: Client, **fields: str):
    return client.post(SIGN_IN, fields)


@pytest.mark.parametrize("path", [*CLOSED, "/leases/lse-none/", "/requests/req-none/", "/notifications/"])
def test_a_stranger_is_led_to_the_sign_in_page_and_back(db: None, path: str) -> None:
    answer = Client().get(path)

    assert answer.status_code == 302
    assert answer["Location"] == f"{SIGN_IN}?next={path}"


def test_the_right_password_signs_in_and_goes_on(world: World) -> None:
    client = Client()

    answer = post(client, username="bob", password=PASSWORD, next="/leases/")

    assert (answer.status_code, answer["Location"]) == (302, "/leases/")
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("goal", NOT_OURS)
def test_nobody_is_sent_to_another_site_or_to_nonsense(world: World, signed_in: SignedIn, goal: str) -> None:
    shown = Client().get(SIGN_IN, {"next": goal})
    sent = post(Client(), username="bob", password=PASSWORD, next=goal)
    was_in = signed_in("bob").get(SIGN_IN, {"next": goal})
    chosen = Client().post("/language/", {"language": "en", "next": goal})
    asked = Client().get("/language/", {"next": goal})

    assert shown.status_code == 200
    assert 'name="next" value="/"' in shown.text
    assert {(one.status_code, one["Location"]) for one in (sent, was_in, chosen, asked)} == {(302, "/")}


@pytest.mark.parametrize("goal", ["/a\x00b", "\x00"])
def test_a_nul_leads_home_from_a_form_and_is_a_bad_address(world: World, goal: str) -> None:
    sent = post(Client(), username="bob", password=PASSWORD, next=goal)
    chosen = Client().post("/language/", {"language": "en", "next": goal})

    assert (sent["Location"], chosen["Location"]) == ("/", "/")
    assert Client().get(SIGN_IN, {"next": goal}).status_code == 400


@pytest.mark.parametrize(
    ("goal", "path"),
    [
        ("/leases/?state=active&page=2", "/leases/?state=active&page=2"),
        ("/teams/视觉/", "/teams/%E8%A7%86%E8%A7%89/"),
        ("/calendar/?on=2027-01-01#now", "/calendar/?on=2027-01-01#now"),
        ("/requests/?q=https://elsewhere.example", "/requests/?q=https://elsewhere.example"),
    ],
)
def test_a_page_of_this_portal_is_gone_to(world: World, goal: str, path: str) -> None:
    sent = post(Client(), username="bob", password=PASSWORD, next=goal)
    chosen = Client().post("/language/", {"language": "en", "next": goal})

    assert (sent["Location"], chosen["Location"]) == (path, path)


def test_wrong_password_and_unknown_name_look_alike(world: World) -> None:
    wrong = post(Client(), username="bob", password="not it")
    unknown = post(Client(), username="nobody", password="not it")

    assert wrong.status_code == unknown.status_code == 422
    assert b"do not fit together" in wrong.content
    assert b"do not fit together" in unknown.content


def test_the_sixth_try_within_a_minute_is_refused_even_with_the_right_password(world: World) -> None:
    client = Client()
    for _try in range(5):
        post(client, username="bob", password="not it")

    answer = post(client, username="bob", password=PASSWORD)

    assert answer.status_code == 429
    assert 0 < int(answer["Retry-After"]) <= 60
    assert client.get("/").status_code == 302
    assert post(client, username="alice", password=PASSWORD).status_code == 302


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"username": "bob"},
        {"username": "b\x00b", "password": "x"},
        {"username": "b" * 5000, "password": "x"},
        {"username": "bob", "password": "x" * 600},
        {"demo": "root"},
        {"username": "\ud83d\ude00", "password": "\u202e"},
    ],
)
def test_bad_input_is_answered_with_the_form(world: World, fields: dict[str, str]) -> None:
    fields = {name: value.encode("utf-8", "replace").decode() for name, value in fields.items()}

    answer = post(Client(), **fields)

    assert answer.status_code == 422
    assert b"<form" in answer.content


def test_demo_people_sign_in_with_one_click_only_in_the_demo(world: World, settings) -> None:
    settings.DEMO = True
    User.objects.filter(username="alice").update(is_demo=True)
    assert b'value="alice"' in Client().get(SIGN_IN).content
    assert post(Client(), demo="alice").status_code == 302

    settings.DEMO = False
    assert b'value="alice"' not in Client().get(SIGN_IN).content
    assert post(Client(), demo="alice").status_code == 422


def test_signing_out_needs_a_post_and_ends_the_session(signed_in: SignedIn) -> None:
    client = signed_in("bob")

    assert client.get("/sign-out/").status_code == 405
    assert client.post("/sign-out/").status_code == 302
    assert client.get("/").status_code == 302


def test_a_chosen_language_is_spoken(world: World) -> None:
    client = Client()

    answer = client.post("/language/", {"language": "zh-hans", "next": SIGN_IN})

    assert answer["Location"] == SIGN_IN
    assert b'lang="zh-Hans"' in client.get(SIGN_IN).content
    assert client.get("/jsi18n/").status_code == 200
