"""What a request is asked for to open: the choices of the form, and the one button of its page."""

from __future__ import annotations

from dataclasses import dataclass, replace

from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils.translation import gettext as _

from portal.gateway import app_hosts
from portal.gateway.catalogue import App, app_of
from portal.gateway.tickets import why_no_app, why_no_ssh, why_no_terminal
from portal.leases.models import Lease, LeaseRequest
from portal.leases.states import LeaseState, Opening
from portal.web.access import rights_of

NOTEBOOK_APP = "jupyterlab"


@dataclass(frozen=True)
class OpeningChoice:
    """One answer to "What do you want to run?"; with ``url`` it leads to another form."""

    value: str
    title: str
    text: str
    icon: str
    is_checked: bool = False
    url: str = ""


@dataclass(frozen=True)
class OpeningView:
    """What the page of a request or lease says of what it opens; ``why_not`` where it cannot be opened."""

    kind: str
    title: str
    waiting: str
    url: str
    why_not: str = ""


def notebook_app() -> App | None:
    """Return the app that a notebook is, None where the catalogue of this installation has none."""
    return app_of(NOTEBOOK_APP)


def may_lead_to_apps(request: HttpRequest) -> bool:
    """Say whether apps can be opened at all by whoever called the portal by this name."""
    return bool(settings.GATEWAYS and settings.APPS_DOMAIN) and app_hosts.is_reachable(request.get_host())


def opening_choices(request: HttpRequest, *, chosen: str) -> list[OpeningChoice]:
    """Return what can be run on this installation; with nothing ``chosen`` yet the first one is."""
    notebook = notebook_app() if may_lead_to_apps(request) else None
    offered = []
    if notebook is not None:
        offered.append(OpeningChoice(Opening.NOTEBOOK, _("Notebook"), notebook.title, "file-invoice"))
    if settings.GATEWAYS:
        offered.append(OpeningChoice(Opening.TERMINAL, _("Terminal"), _("in the browser"), "terminal-2"))
    job = OpeningChoice(
        "batch",
        _("Batch job"),
        _("runs once, by itself"),
        "player-play",
        url=f"{reverse('web:jobs')}#job-form",
    )
    offered.append(job)
    if settings.GATEWAYS:
        offered.append(OpeningChoice(Opening.SSH, _("SSH"), _("VS Code, scp, rsync"), "key"))
    offered.append(OpeningChoice(Opening.DEVICE, _("Just the device"), _("nothing is opened"), "cpu"))
    values = [one.value for one in offered if not one.url]
    checked = chosen if chosen in values else values[0]
    return [replace(one, is_checked=one.value == checked) for one in offered]


def asked_to_open(request: HttpRequest, asked: LeaseRequest) -> OpeningView | None:
    """Return what opens once a request of the reader's has started, None where it is nothing or not theirs."""
    return None if asked.author_id != rights_of(request).user.pk else _view(asked.opens, "", "")


def lease_opening(request: HttpRequest, lease: Lease) -> OpeningView | None:
    """Return what the holder of an active lease opens first, None where it is nothing or not theirs."""
    user, kind = rights_of(request).user, lease.request.opens
    if lease.user_id != user.pk or lease.state != LeaseState.ACTIVE:
        return None
    if kind == Opening.NOTEBOOK:
        refusal = why_no_app(lease, user, host=request.get_host())
        url = reverse("web:lease_app", args=[lease.uid, NOTEBOOK_APP])
    else:
        refusal = (why_no_ssh if kind == Opening.SSH else why_no_terminal)(lease, user)
        url = reverse("web:lease_terminal", args=[lease.uid])
    return _view(kind, url, str(refusal.detail) if refusal else "")


def _view(kind: str, url: str, why_not: str) -> OpeningView | None:
    if kind == Opening.NOTEBOOK:
        app = notebook_app()
        title = app.title if app else _("Notebook")
        why_not = why_not if app else _("This installation has no notebook. Ask an operator.")
        words = {"app": title}
        return OpeningView(
            kind,
            _("Open %(app)s") % words,
            _("When it starts, a button here opens %(app)s.") % words,
            url,
            why_not,
        )
    if kind == Opening.TERMINAL:
        waiting = _("When it starts, a button here opens the terminal.")
        return OpeningView(kind, _("Open the terminal"), waiting, url, why_not)
    if kind == Opening.SSH:
        waiting = _("When it starts, the command for SSH stands here.")
        return OpeningView(kind, _("Connect with SSH"), waiting, url, why_not)
    return None
