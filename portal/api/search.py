"""Search over HTTP."""

from __future__ import annotations

from dataclasses import asdict

from rest_framework.request import Request
from rest_framework.response import Response

from portal.api.describe import call, query
from portal.api.endpoint import Endpoint
from portal.api.responses import MatchAnswer
from portal.web.search.find import LONGEST, find


class FindObjects(Endpoint):
    """What one may see, by a few letters."""

    parameters = frozenset({"q"})

    @call(
        "Search", answer=MatchAnswer, is_list=True, tag="people",
        parameters=[query("q", f"Letters of a name, or the begin of an id; {LONGEST} count.")],
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """Return leases, requests, jobs, teams and nodes that fit, at most five of each.

        Ids are looked for among all, names among the newest 2,000.
        """
        found = find(self.rights, request.query_params.get("q", ""))
        return Response({"next": None, "results": [asdict(one) for one in found]})
