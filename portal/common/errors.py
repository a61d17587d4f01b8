"""Errors for people: a stable code, what happened and what to do next.

A service raises one of these; the API turns it into problem+json and a page into a message.
docs/errors.md lists every code; a test holds it against ``catalogue()``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from django.utils.translation import gettext_lazy as _


class BerthError(Exception):
    """The base of every refusal. ``code`` is stable, ``status`` the HTTP status it maps to."""

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 400
    title: ClassVar[Any] = _("That did not work")
    next_step: ClassVar[Any] = _("Check what you sent and try again.")

    def __init__(self, detail: Any = "", **facts: Any) -> None:
        super().__init__(str(detail) or self.code)
        self.detail = detail or self.title
        self.facts = facts


class Invalid(BerthError):
    """A value that cannot be used; ``fields`` maps field names to sentences."""

    code = "invalid"
    status = 422
    title = _("Some values cannot be used")
    next_step = _("Correct the marked fields and send again.")

    def __init__(self, detail: Any = "", *, fields: dict[str, Any] | None = None, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.fields = fields or {}


class NotFound(BerthError):
    """Nothing there, or nothing there for this person: both look the same."""

    code = "not_found"
    status = 404
    title = _("There is nothing here")
    next_step = _("Check the address, or ask the owner for access.")


class Forbidden(BerthError):
    """Visible, but this role may not do it."""

    code = "forbidden"
    status = 403
    title = _("Your role does not allow this")
    next_step = _("Ask a team admin or an operator.")


class Conflict(BerthError):
    """The object is not in a state that allows this."""

    code = "conflict"
    status = 409
    title = _("That is no longer possible")
    next_step = _("Reload to see the present state.")


class QuotaExceeded(BerthError):
    """The team's ceiling, or that of a team above it, would be passed."""

    code = "quota_exceeded"
    status = 409
    title = _("The quota of the team is used up")
    next_step = _("Ask for less, wait for a lease to end, or ask a team admin for more quota.")


class BudgetExceeded(BerthError):
    """A budget or quota of the team, or of a team above it, or the balance that pays does not allow this."""

    code = "budget_exceeded"
    status = 409
    title = _("Budget, balance or quota do not allow this")
    next_step = _("Ask for less, or ask those who set the budget, the wallet or the quota for more.")


class Impossible(BerthError):
    """No device of this installation could ever serve the request."""

    code = "impossible"
    status = 422
    title = _("No device here can ever serve this")
    next_step = _("Choose another flavor.")


class TooManyWaiting(BerthError):
    """The team has too many requests in the queue."""

    code = "too_many_waiting"
    status = 429
    title = _("Your team has too many waiting requests")
    next_step = _("Wait for some to start, or withdraw some.")


class TooManyCalls(BerthError):
    """One person called the API more often than the installation allows; ``wait`` is in seconds."""

    code = "too_many_calls"
    status = 429
    title = _("Too many calls in a short time")
    next_step = _(
        "Wait as long as the Retry-After header says, then go on. "
        "Whoever looks for changes is told sooner by the live socket than by asking again and again."
    )

    def __init__(self, detail: Any = "", *, wait_s: int, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.wait = wait_s


class TooManyDownloads(BerthError):
    """A person, or all together, have as many large downloads running as are served at once."""

    code = "too_many_downloads"
    status = 429
    title = _("Too many downloads at once")
    next_step = _("Wait until one has ended, or stop one, and try again.")


class PeriodClosed(BerthError):
    """The month is closed; it never changes again."""

    code = "period_closed"
    status = 409
    title = _("This billing period is closed")
    next_step = _("Correct it with a note in the present month.")


class Unavailable(BerthError):
    """A store is away or busy; nothing was changed."""

    code = "unavailable"
    status = 503
    title = _("Berth is busy for a moment")
    next_step = _("Nothing was changed. Try again in a few seconds.")


def catalogue() -> dict[str, type[BerthError]]:
    """Return every code with its class, subclasses included."""
    found: dict[str, type[BerthError]] = {}
    waiting: list[type[BerthError]] = [BerthError]
    while waiting:
        kind = waiting.pop()
        found[kind.code] = kind
        waiting.extend(kind.__subclasses__())
    return dict(sorted(found.items()))
