"""Every form that any page shows, its fields spoilt, sent with the browser's proof; and every address with nonsense."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import quote_from_bytes, urlencode, urljoin, urlsplit

import pytest
from django.db import transaction
from django.http.cookie import SimpleCookie
from django.test import Client

from tests.api.scene import scene
from tests.hostile import nasty
from tests.hostile.plenty import IS_FEW, Surface
from tests.portal.builders import World

PEOPLE = ("", "bob", "alice", "approver", "finance", "operator")
MOST_PAGES = 12 if IS_FEW else 200
PROOF = "csrfmiddlewaretoken"


@dataclass
class Form:
    """A form as it stands on a page: where it goes, how, and what its fields hold."""

    action: str
    is_post: bool
    fields: dict[str, str] = field(default_factory=dict)


class Page(HTMLParser):
    """Collects the links and forms of a page."""

    def __init__(self, at: str, text: str) -> None:
        super().__init__()
        self.at, self.links, self.forms = at, [], []
        self._form: Form | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "a" and given.get("href", "").startswith(("/", "?")):
            self.links.append(urljoin(self.at, given["href"]).partition("#")[0])
        elif tag == "form":
            at = urljoin(self.at, given.get("action") or self.at)
            self._form = Form(at, given.get("method", "").lower() == "post")
            self.forms.append(self._form)
        elif tag in ("input", "select", "textarea", "button") and given.get("name") and self._form:
            self._form.fields.setdefault(given["name"], given.get("value", ""))
        elif tag == "option" and self._form and self._form.fields and "selected" in given:
            self._form.fields[list(self._form.fields)[-1]] = given.get("value", "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._form = None


@dataclass
class Visitor:
    """A browser of one person, and what it found by following links."""

    name: str
    client: Client
    cookies: str
    pages: list[str]
    forms: list[Form]


def _visit(world: World, name: str) -> Visitor:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    if name:
        client.force_login(world.user(name))
    due, seen = ["/" if name else "/sign-in/", "/sign-in/", "/design/"], dict[str, list[Form]]()
    shapes: set[tuple[str, ...]] = set()
    while due and len(seen) < MOST_PAGES:
        at = due.pop(0)
        if at in seen or urlsplit(at).path.startswith(("/api/", "/static/")):
            continue
        answer = client.get(at)
        assert answer.status_code < 500, (name, at, answer.content[:300])
        if answer.status_code != 200 or "text/html" not in answer["Content-Type"]:
            continue
        page = Page(at, answer.text)
        seen[at] = page.forms
        due += [link for link in page.links if _shape(link) not in shapes]
        shapes |= {_shape(link) for link in page.links}
    unique = {
        (form.action, form.is_post, *sorted(form.fields)): form for forms in seen.values() for form in forms
    }
    return Visitor(name, client, client.cookies.output(header="", sep=";"), list(seen), list(unique.values()))


def _shape(link: str) -> tuple[str, ...]:
    """Two pages of one kind, such as two leases, are one to a crawler; few of each are looked at."""
    parts = urlsplit(link)
    names = tuple(sorted(pair.partition("=")[0] for pair in parts.query.split("&")))
    return (*(part if part.isalpha() else part[:6] for part in parts.path.split("/")), *names)


def _spoilt(form: Form, rng: random.Random) -> dict[str, str]:
    sent = {name: value for name, value in form.fields.items() if name != PROOF}
    for name in rng.sample(sorted(sent), min(len(sent), rng.choice((1, 1, 2, 5)))):
        if rng.random() < 0.1:
            del sent[name]
        else:
            sent[name] = nasty.text(rng)
    if rng.random() < 0.1:
        sent[nasty.text(rng)[:200]] = nasty.text(rng)
    return sent


def _encoded(sent: dict[str, str]) -> str:
    """As browsers send it; broken characters as the bytes that a careless program sends."""
    return urlencode(
        {k.encode("utf-8", "surrogatepass"): v.encode("utf-8", "surrogatepass") for k, v in sent.items()}
    )


def _throws(
    visitors: list[Visitor], rng: random.Random, count: int
) -> Iterator[tuple[Visitor, str, str, str]]:
    for _ in range(count):
        visitor = rng.choice(visitors)
        if visitor.forms and rng.random() < 0.8:
            form = rng.choice(visitor.forms)
            body = _encoded(_spoilt(form, rng))
            yield (
                (visitor, "POST", form.action, body) if form.is_post else (visitor, "GET", form.action, body)
            )
        else:
            at = rng.choice(visitor.pages).partition("?")[0]
            parts = at.split("/")
            if len(parts) > 3 and rng.random() < 0.5:
                whole = nasty.text(rng)[:2_000].encode("utf-8", "surrogatepass")
                parts[rng.randrange(2, len(parts) - 1)] = quote_from_bytes(whole, safe="") or "x"
            query = {
                rng.choice(
                    ("page", "next", "month", "on", "view", "team", "state", "q", "from", "a", "b")
                ): nasty.text(rng)
            }
            yield visitor, "GET", "/".join(parts), _encoded(query)


@pytest.mark.deep
def test_no_form_and_no_address_answers_with_a_5xx(world: World) -> None:
    scene(world)
    visitors = [_visit(world, name) for name in PEOPLE]
    assert sum(form.is_post for visitor in visitors for form in visitor.forms) > 20

    with Surface("forms and pages", 0.06) as surface:
        for visitor, method, at, body in _throws(visitors, surface.rng, surface.count):
            client = visitor.client
            client.cookies = SimpleCookie(visitor.cookies)
            proof = client.cookies["csrftoken"].value if "csrftoken" in client.cookies else ""
            with transaction.atomic():
                if method == "POST":
                    answer = client.post(
                        at, body, "application/x-www-form-urlencoded", headers={"X-CSRFToken": proof}
                    )
                else:
                    answer = client.get(at.partition("?")[0] + "?" + body[:60_000])
                transaction.set_rollback(True)
            sent = (visitor.name, method, at[:200], body)
            surface.note(answer.status_code, sent, is_wrong=answer.status_code >= 500, told=answer.content)
        assert surface.answers["302"] + surface.answers["422"] > surface.answers["403"]
