"""A CSV file of many requests: read line by line with the fields of the form, then tried or sent together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from django.utils.translation import gettext as _

from portal.accounts.models import User
from portal.common.clock import db_now
from portal.common.csv_rows import read_rows, unusable
from portal.common.errors import BerthError, Invalid
from portal.leases.bulk import submit_bulk
from portal.leases.models import LeaseRequest
from portal.leases.requests import RequestSpec
from portal.leases.states import RequestState
from portal.teams.models import Role, Team
from portal.teams.selectors import Rights
from portal.web.requests.forms import FIELD_OF, RequestForm

MOST_LINES = 100
MOST_TEXT = 64 * 1024
# What a column is called in the file, and which field of the form reads it.
COLUMNS = {
    "flavor": "flavor", "duration": "duration", "hours": "duration", "count": "count", "team": "team", "name": "name",
    "purpose": "purpose", "priority": "priority", "work": "work", "opens": "opens", "starts_at": "starts_at",
    "is_preemptible": "is_preemptible", "least": "least", "nodes": "nodes", "most_count": "most_count",
    "project": "project", "tags": "tags",
}  # fmt: skip
NO = ("", "0", "no", "false", "n")


@dataclass
class CsvLine:
    """One line of the file; ``faults`` are (column, sentence), empty where it can be asked for.

    ``made`` is the request, or what it would be where nothing was kept.
    """

    number: int
    form: RequestForm
    faults: list[tuple[str, str]] = field(default_factory=list)
    made: LeaseRequest | None = None

    @property
    def needs_approval(self) -> bool:
        """Say whether somebody has to approve it first."""
        return self.made is not None and self.made.state == RequestState.AWAITING_APPROVAL


def read_csv(text: str, *, teams: Sequence[Team], rights: Rights) -> list[CsvLine]:
    """Return the lines of a file with a head; raises Invalid naming ``csv`` for what is no such file.

    Columns are separated by commas or semicolons. A team may be left out by somebody who asks for one alone.
    """
    filled = read_rows(text, columns=COLUMNS, example="flavor,hours,count,name").rows
    if not 1 <= len(filled) <= MOST_LINES:
        raise unusable(_("Ask for 1 to %(n)d lines at once.") % {"n": MOST_LINES})
    may_go_first = rights.has_anywhere(Role.ADMIN)
    lines = []
    for row in filled:
        values = {COLUMNS[name]: cell for name, cell in row.cells.items()}
        if values.get("is_preemptible", "").lower() in NO:
            values.pop("is_preemptible", None)
        if len(teams) == 1 and not values.get("team"):
            values["team"] = teams[0].slug
        values["count"] = values.get("count") or "1"
        line = CsvLine(row.number, RequestForm(values, teams=teams, may_go_first=may_go_first))
        if row.is_too_long:
            line.faults.append(("", _("There are more cells than columns.")))
        for name, errors in line.form.errors.items():
            line.faults += [("" if name == "__all__" else name, str(error)) for error in errors]
        lines.append(line)
    return lines


def ask_for_lines(lines: Sequence[CsvLine], *, actor: User, rights: Rights, is_trial: bool) -> bool:
    """Ask for all lines, or for none where one cannot be had, and note at each what came of it.

    True where all were taken; with ``is_trial``, where all would be, and nothing is kept.
    """
    ready = [line for line in lines if not line.faults]
    if len(ready) < len(lines):
        is_trial = True
    wanted: list[tuple[Team, RequestSpec]] = [(line.form.chosen_team, line.form.spec()) for line in ready]
    found = submit_bulk(wanted, actor=actor, rights=rights, now=db_now(), is_trial=is_trial)
    for line, made in zip(ready, found, strict=True):
        if isinstance(made, LeaseRequest):
            line.made = made
        elif isinstance(made, Invalid) and made.fields:
            line.faults += [(FIELD_OF.get(name, name), str(said)) for name, said in made.fields.items()]
        else:
            line.faults.append(("", str(made.detail)))
    return not any(line.faults for line in lines)


def refusal_of(lines: Sequence[CsvLine]) -> BerthError:
    """Return why nothing was asked for, line by line."""
    said = [
        _("Line %(n)d, %(column)s: %(why)s") % {"n": line.number, "column": column, "why": why}
        if column
        else _("Line %(n)d: %(why)s") % {"n": line.number, "why": why}
        for line in lines
        for column, why in line.faults
    ]
    return Invalid(fields={"csv": said})
