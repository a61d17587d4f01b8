"""The address of the form for GPU time with its fields filled: to ask again, by a template, or to share."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from urllib.parse import urlencode

from django.urls import reverse

from portal.leases.models import LeaseRequest
from portal.leases.requests import RequestSpec, spec_of
from portal.web.figures import duration_text


def form_address(team: str, spec: RequestSpec) -> str:
    """Return the path that fills the form with what is asked for; ``team`` is a slug."""
    usual = RequestSpec(flavor="", duration_s=0)
    fields = {
        "team": team,
        "flavor": spec.flavor,
        "count": str(spec.count),
        "duration": duration_text(spec.duration_s),
        "opens": spec.opens,
    }
    for name in ("priority", "name", "purpose", "load_pattern", "work", "nodes", "most_count"):
        value = getattr(spec, name)
        if value != getattr(usual, name):
            fields[name] = str(value)
    if spec.is_preemptible:
        fields["is_preemptible"] = "1"
    if spec.least_duration_s:
        fields["least"] = duration_text(spec.least_duration_s)
    if spec.starts_at is not None:
        # In UTC: whoever opens it may live in another zone.
        fields["starts_at"] = spec.starts_at.astimezone(UTC).isoformat()
    return f"{reverse('web:request_new')}?{urlencode(fields)}"


def again_address(asked: LeaseRequest) -> str:
    """Return the path that fills the form with what a request asked for; its team and flavor are at hand."""
    return form_address(asked.team.slug, replace(spec_of(asked), duration_s=asked.duration_s))
