"""What a person may see whose name begins or reads like a few letters: pages' search and the API's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db.models import Q
from django.urls import reverse

from portal.fleet.models import Node
from portal.jobs.models import Job
from portal.jobs.selectors import visible_jobs
from portal.leases.models import LeaseRequest
from portal.leases.selectors import visible_leases, visible_requests
from portal.teams.selectors import Rights, visible_teams

MOST_EACH: Final = 5
LONGEST: Final = 80
# Names are looked for among so many of the newest, ids among all: a name has no index that knows its middle.
NEWEST: Final = 2000


@dataclass(frozen=True, slots=True)
class Match:
    """An object that fits; ``name`` may be empty where its ``id`` is all it has."""

    kind: str
    id: str
    name: str
    state: str
    path: str


def find(rights: Rights, text: str) -> list[Match]:
    """Return leases, requests, jobs, teams and nodes that fit, at most five of each; nothing for an empty text.

    Six queries whatever there is.
    """
    text = text.strip()[:LONGEST]
    if not text or "\x00" in text:
        return []
    return [
        *_leases_and_requests(rights, text),
        *_jobs(rights, text),
        *(
            Match("team", team.slug, team.name, "", reverse("web:team", args=[team.slug]))
            for team in visible_teams(rights)
            .filter(Q(slug__icontains=text) | Q(name__icontains=text))
            .order_by("name")[:MOST_EACH]
        ),
        *(
            Match("node", node.name, "", "", reverse("web:node", args=[node.name]))
            for node in Node.objects.filter(name__icontains=text).order_by("name")[:MOST_EACH]
        ),
    ]


def _leases_and_requests(rights: Rights, text: str) -> list[Match]:
    newest = visible_requests(rights).order_by("-pk").values("pk")[:NEWEST]
    named = Q(pk__in=list(newest.values_list("pk", flat=True)), name__icontains=text)
    requests = list(
        visible_requests(rights)
        .filter(Q(uid__startswith=text.lower()) | named)
        .select_related("flavor")
        .order_by("-pk")[:MOST_EACH]
    )
    leases = (
        visible_leases(rights)
        .filter(Q(uid__startswith=text.lower()) | Q(request__in=[row.pk for row in requests]))
        .select_related("request", "flavor")
        .order_by("-pk")[:MOST_EACH]
    )
    return [
        *(
            Match("lease", row.uid, _named(row.request), row.state, reverse("web:lease", args=[row.uid]))
            for row in leases
        ),
        *(
            # Without it the page of a request that has its lease leads on to that.
            Match(
                "request",
                row.uid,
                _named(row),
                row.state,
                reverse("web:request", args=[row.uid]) + "?show=request",
            )
            for row in requests
        ),
    ]


def _named(request: LeaseRequest) -> str:
    return request.name or str(request.flavor.shown_name)


def _jobs(rights: Rights, text: str) -> list[Match]:
    newest = list(visible_jobs(rights).order_by("-pk").values_list("pk", flat=True)[:NEWEST])
    rows = Job.objects.filter(pk__in=newest).filter(Q(uid__startswith=text.lower()) | Q(name__icontains=text))
    return [
        Match("job", row.uid, row.name, row.state, reverse("web:job", args=[row.uid]))
        for row in rows.order_by("-pk")[:MOST_EACH]
    ]
