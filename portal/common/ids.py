"""Public names of rows: a prefix that says what it is, then 80 random bits."""

from __future__ import annotations

import secrets

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: nothing that looks like something else


def new_uid(prefix: str) -> str:
    """Return e.g. ``lse-3k9v…``: unique in practice, not guessable, safe in addresses and shells."""
    number = secrets.randbits(80)
    return prefix + "-" + "".join(_ALPHABET[(number >> shift) & 31] for shift in range(75, -1, -5))


def request_uid() -> str:
    """Return a name for a request."""
    return new_uid("req")


def lease_uid() -> str:
    """Return a name for a lease."""
    return new_uid("lse")


def reservation_uid() -> str:
    """Return a name for a reservation."""
    return new_uid("rsv")


def lab_uid() -> str:
    """Return a name for a run of the lab."""
    return new_uid("lab")


def workshop_uid() -> str:
    """Return a name for a workshop."""
    return new_uid("wks")


def template_uid() -> str:
    """Return a name for a template."""
    return new_uid("tpl")


def announcement_uid() -> str:
    """Return a name for an announcement."""
    return new_uid("ann")


def window_uid() -> str:
    """Return a name for a maintenance window."""
    return new_uid("mnt")


def invoice_uid() -> str:
    """Return a name for an invoice."""
    return new_uid("inv")


def note_uid() -> str:
    """Return a name for a credit or debit note."""
    return new_uid("nte")


def job_uid() -> str:
    """Return a name for a batch job."""
    return new_uid("job")


def array_uid() -> str:
    """Return a name for an array of batch jobs."""
    return new_uid("arr")


def alert_uid() -> str:
    """Return a name for an alert."""
    return new_uid("alt")


def silence_uid() -> str:
    """Return a name for a silence of alerts."""
    return new_uid("sil")


def import_uid() -> str:
    """Return a name for an import of finance."""
    return new_uid("imp")
