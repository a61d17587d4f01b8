"""A person's own SSH keys: with them one comes into one's leases by ``berth ssh``."""

from __future__ import annotations

from django import forms
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from portal.accounts.models import SshKey
from portal.accounts.ssh_keys import LONGEST_NAME, MOST_LINE
from portal.audit.sign_ins import add_ssh_key, remove_ssh_key
from portal.common.errors import Invalid
from portal.web.access import done, person


class SshKeyForm(forms.Form):
    """One line of a .pub file, and what one calls it."""

    key = forms.CharField(
        label=gettext_lazy("Public key"),
        max_length=MOST_LINE,
        help_text=gettext_lazy("The line of a .pub file, such as ~/.ssh/id_ed25519.pub."),
        widget=forms.Textarea(
            {
                "class": "form-control",
                "rows": 4,
                "placeholder": "ssh-ed25519 AAAA… me@laptop",
                "autocomplete": "off",
                "spellcheck": "false",
            }
        ),
    )
    name = forms.CharField(
        label=gettext_lazy("Name"),
        max_length=LONGEST_NAME,
        required=False,
        help_text=gettext_lazy("The comment of the key where you leave it empty."),
        widget=forms.TextInput({"class": "form-control", "autocomplete": "off"}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def page(request: HttpRequest) -> HttpResponse:
    """List the person's keys; a POST adds one."""
    form = SshKeyForm(request.POST) if request.method == "POST" else SshKeyForm()
    if form.is_bound and form.is_valid():
        try:
            add_ssh_key(user=person(request), now=timezone.now(), **form.cleaned_data)
            return done(request, _("The key is added: “berth ssh” takes it from now on."), "web:ssh_keys")
        except Invalid as error:
            for field, text in error.fields.items():
                form.add_error(field, text)
    context = {
        "rows": SshKey.objects.filter(user=person(request)),
        "form": form,
        "commands": "\n".join(
            (
                f"berth login --url {request.scheme}://{request.get_host()}",
                "berth ssh-config --write",
                "ssh lse-….berth",
            )
        ),
    }
    return render(request, "web/ssh_keys.html", context, status=422 if form.is_bound else 200)


@require_POST
def remove(request: HttpRequest, key: int) -> HttpResponse:
    """Forget one of the person's own keys."""
    remove_ssh_key(user=person(request), key_id=key, now=timezone.now())
    return done(request, _("The key is removed: nobody signs in with it from now on."), "web:ssh_keys")
