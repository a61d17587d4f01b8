"""The gateway's own pages on an app's host: what an app does that is not there yet, and why one is not there."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from html import escape
from typing import Final

from django.utils import translation
from django.utils.translation import gettext as _

from nodeagent.protocol.lease_streams import ENDED, FAILED, INSTALLING, AppWord
from portal.gateway.catalogue import App

STATE_PATH: Final = "/_berth/state"
START_PATH: Final = "/_berth/start"
_STYLE: Final = (
    ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;margin:0;min-height:100vh;display:grid;"
    "place-items:center;background:Canvas;color:CanvasText}main{max-width:44rem;padding:2rem 1.25rem;width:100%;"
    "box-sizing:border-box}h1{font-size:1.35rem;margin:0 0 .5rem}p{margin:.5rem 0}pre{overflow:auto;max-height:50vh;"
    "padding:.75rem;border:1px solid color-mix(in srgb,CanvasText 20%,Canvas);border-radius:.5rem;font-size:13px;"
    "white-space:pre-wrap;overflow-wrap:anywhere}a{color:LinkText}button{font:inherit;padding:.5rem 1rem;"
    "border-radius:.5rem;border:1px solid color-mix(in srgb,CanvasText 30%,Canvas);cursor:pointer}"
    "progress{width:100%;margin:.75rem 0}.sub{opacity:.75;overflow-wrap:anywhere}"
)
_SCRIPT: Final = """
const look = async () => {
  try {
    const answer = await fetch(%(state)s, {cache: "no-store"});
    const told = await answer.json();
    if (told.state === "ready" || told.state === "failed" || told.state === "ended") return location.reload();
    document.querySelector("[data-text]").textContent = told.text;
    document.querySelector("[data-detail]").textContent = told.detail;
  } catch { /* asked again */ }
  setTimeout(look, 120);
};
setTimeout(look, 150);
"""


@dataclass(frozen=True, slots=True)
class Page:
    """A page of the gateway's own: status, headers and body."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def progress(app: App, word: AppWord, language: str) -> Page:
    """Say that an app comes up, and go on to it by itself."""
    with translation.override(language):
        text = escape(state_text(app, word))
        inner = (
            f'<p role="status" data-text>{text}</p><progress aria-label="{escape(app.title)}"></progress>'
            f'<p class="sub" data-detail>{escape(word.detail)}</p>'
        )
        return _page(503, app.title, inner, script=_SCRIPT % {"state": json.dumps(STATE_PATH)})


def failed(app: App, word: AppWord, lines: bytes, language: str) -> Page:
    """Say that an app did not start or has ended, with what it said last."""
    with translation.override(language):
        text = escape(state_text(app, word))
        said = escape(lines.decode(errors="replace"))
        shown = f"<p>{escape(_('It said last:'))}</p><pre>{said}</pre>" if said.strip() else ""
        needs = ", ".join(app.needs)
        hint = ""
        if word.state == FAILED and needs:
            hint = escape(_("It needs %(programs)s where your login shell finds it.") % {"programs": needs})
        button = escape(_("Start it again"))
        form = f'<form method="post" action="{START_PATH}"><button>{button}</button></form>'
        inner = (
            f'<p role="alert">{text}</p><p class="sub">{escape(word.detail)}</p>{shown}<p>{hint}</p>{form}'
        )
        return _page(502, app.title, inner)


def refusal(code: str, title: str, language: str, *, link: str = "", detail: str = "") -> Page:
    """Say why there is no app here, and where to go."""
    with translation.override(language):
        status, text = _refusals().get(code, (502, _("The app gave no answer that a browser can use.")))
        inner = f"<p>{escape(text)}</p>"
        if detail:
            inner += f'<p class="sub">{escape(detail)}</p>'
        if link:
            inner += f'<p><a href="{escape(link)}">{escape(_("To the lease"))}</a></p>'
        return _page(status, title or _("App"), inner)


def state_text(app: App, word: AppWord) -> str:
    """Return an app's state in words."""
    if word.state == INSTALLING:
        return _("%(app)s is being installed on this machine. That is done once.") % {"app": app.title}
    if word.state == FAILED:
        return _("%(app)s did not start.") % {"app": app.title}
    if word.state == ENDED:
        return _("%(app)s has ended.") % {"app": app.title}
    return _("%(app)s starts…") % {"app": app.title}


def _refusals() -> dict[str, tuple[int, str]]:
    return {
        "no_app": (404, _("There is no app by this name.")),
        "bad_ticket": (401, _("This link was used already or is too old. Open the app again.")),
        "no_cookie": (401, _("Open this app from the page of its lease.")),
        "signed_out": (401, _("You are signed out of the portal. Sign in and open the app again.")),
        "not_allowed": (403, _("Only the lease's holder opens its apps.")),
        "lease_over": (410, _("This lease is over, and its apps with it.")),
        "node_away": (503, _("The node of this lease is not connected now. Try again in a moment.")),
        "unavailable": (503, _("The portal cannot look this up now. Try again in a moment.")),
        "too_many": (503, _("This lease has as many connections as it may. Close some.")),
        "strange_page": (403, _("A page of another site may not ask this app for anything.")),
        "refused": (
            502,
            _("Nothing listens there in this lease. Start your program, then load this page again."),
        ),
        "not_yours": (
            502,
            _("Somebody else of this node listens on this port, not you. Choose another one."),
        ),
        "no_answer": (502, _("The app took the request and gave no answer.")),
        "bad_answer": (502, _("The app gave an answer that is no HTTP.")),
        "slow_upload": (502, _("The app took too long over what was sent to it.")),
        "bad_request": (400, _("This request makes no sense.")),
    }


def _page(status: int, title: str, inner: str, *, script: str = "") -> Page:
    nonce = secrets.token_urlsafe(16)
    code = f'<script nonce="{nonce}">{script}</script>' if script else ""
    language = escape(translation.get_language() or "en")
    body = (
        f'<!doctype html><html lang="{language}"><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><title>{escape(title)} · Berth</title>'
        f'<style nonce="{nonce}">{_STYLE}</style><main><h1>{escape(title)}</h1>{inner}</main>{code}'
    ).encode()
    policy = (
        f"default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    headers = (
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"content-security-policy", policy.encode()),
        *PLAIN,
    )
    return Page(status, body, headers)


PLAIN: Final = (
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
