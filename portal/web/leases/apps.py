"""Apps in a lease: opened in a tab of their own, at an address of their own."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from nodeagent.protocol.lease_streams import MOST_PORT
from portal.common.clock import db_now
from portal.common.errors import BerthError, Invalid, NotFound
from portal.gateway import app_hosts
from portal.gateway.catalogue import app_of
from portal.gateway.tickets import enter_address, why_no_app
from portal.leases.selectors import visible_lease
from portal.web.access import person, refused, rights_of


class PortForm(forms.Form):
    """A port on which the holder started something."""

    port = forms.IntegerField(min_value=1, max_value=MOST_PORT, label=gettext_lazy("Port"))


@require_http_methods(["GET", "HEAD", "POST"])
def app(request: HttpRequest, uid: str, name: str) -> HttpResponse:
    """Lead the holder of an active lease to one of its apps; asked for by GET, after one more click."""
    lease, found = visible_lease(rights_of(request), uid), app_of(name)
    if found is None:
        raise NotFound
    refusal = why_no_app(lease, person(request), host=request.get_host())
    if refusal is not None:
        return refused(request, refusal, "web:lease", uid)
    if request.method != "POST":
        response = render(request, "web/app_open.html", {"lease": lease, "app": found})
        return leads_to_apps(request, response)
    return _lead(request, uid, name)


@require_POST
def port(request: HttpRequest, uid: str) -> HttpResponse:
    """Lead the holder to a port where they started something themselves."""
    visible_lease(rights_of(request), uid)
    form = PortForm(request.POST)
    if not form.is_valid():
        text = _("A port is a number between 1 and %(most)s.") % {"most": MOST_PORT}
        return refused(request, Invalid(fields={"port": text}), "web:lease", uid)
    return _lead(request, uid, f"port-{form.cleaned_data['port']}")


def leads_to_apps(request: HttpRequest, response: HttpResponse) -> HttpResponse:
    """Let the forms of a page lead to apps: a browser asks the page's policy about where it is sent on to."""
    apps = app_hosts.all_origins(is_secure=request.is_secure())
    response._csp_update = {"form-action": [apps]}  # type: ignore[attr-defined]
    return response


def _lead(request: HttpRequest, uid: str, name: str) -> HttpResponse:
    lease = visible_lease(rights_of(request), uid)
    try:
        address = enter_address(
            lease,
            person(request),
            app=name,
            session_key=request.session.session_key or "",
            origin=f"{request.scheme}://{request.get_host()}",
            is_secure=request.is_secure(),
            now=db_now(),
        )
    except BerthError as error:
        return refused(request, error, "web:lease", uid)
    response = HttpResponseRedirect(address, status=303)
    response["Referrer-Policy"] = "no-referrer"
    return response
