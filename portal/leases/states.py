"""The life of a request and of a lease: what may follow what."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _


class RequestState(models.TextChoices):
    """Steps of a request."""

    DRAFT = "draft", _("Draft")
    SUBMITTED = "submitted", _("Submitted")
    AWAITING_APPROVAL = "awaiting_approval", _("Awaiting approval")
    QUEUED = "queued", _("Waiting")
    GRANTED = "granted", _("Granted")
    FULFILLED = "fulfilled", _("Fulfilled")
    REJECTED = "rejected", _("Rejected")
    WITHDRAWN = "withdrawn", _("Withdrawn")
    EXPIRED = "expired", _("Expired")
    IMPOSSIBLE = "impossible", _("Impossible")


class LeaseState(models.TextChoices):
    """Steps of a lease."""

    BOOKED = "booked", _("Booked")
    PREPARING = "preparing", _("Preparing")
    ACTIVE = "active", _("Active")
    INTERRUPTED = "interrupted", _("Interrupted")
    ENDING = "ending", _("Ending")
    CLEANING = "cleaning", _("Cleaning")
    FAILED = "failed", _("Failed")
    ENDED = "ended", _("Ended")


class EndReason(models.TextChoices):
    """Why a lease ended."""

    NONE = "", _("Not ended")
    RELEASED = "released", _("Released early")
    EXPIRED = "expired", _("Time was up")
    PREEMPTED = "preempted", _("Preempted")
    IDLE = "idle", _("Idle")
    FAULT = "fault", _("Device or node fault")
    MAINTENANCE = "maintenance", _("Maintenance")
    REPLANNED = "replanned", _("Rescheduled")
    SCRATCH_FULL = "scratch_full", _("Too much in its scratch folder")


class WorkloadKind(models.TextChoices):
    """What kind of work a request is for: pools of the fleet are shared out by it."""

    INTERACTIVE = "interactive", _("Interactive")
    TRAINING = "training", _("Training")
    INFERENCE = "inference", _("Inference")


class Opening(models.TextChoices):
    """What a request is asked for to open: its page offers this first once the lease is active."""

    DEVICE = "device", _("Just the device")
    NOTEBOOK = "notebook", _("Notebook")
    TERMINAL = "terminal", _("Terminal")
    SSH = "ssh", _("SSH")


class Repeat(models.TextChoices):
    """How a reservation comes again."""

    DAILY = "daily", _("Every day")
    WEEKDAYS = "weekdays", _("Monday to Friday")
    WEEKLY = "weekly", _("Every week")


class ExtensionState(models.TextChoices):
    """Steps of an extension that needs an approval."""

    AWAITING_APPROVAL = "awaiting_approval", _("Awaiting approval")
    APPROVED = "approved", _("Approved")
    REJECTED = "rejected", _("Rejected")
    WITHDRAWN = "withdrawn", _("Withdrawn")
    LAPSED = "lapsed", _("Lapsed")


class Approval(models.TextChoices):
    """Whether a series needs an approval, and what came of it."""

    NOT_NEEDED = "not_needed", _("Not needed")
    AWAITING = "awaiting_approval", _("Awaiting approval")
    APPROVED = "approved", _("Approved")
    REJECTED = "rejected", _("Rejected")


R, L = RequestState, LeaseState
REQUEST_NEXT: dict[str, frozenset[str]] = {
    R.DRAFT: frozenset({R.SUBMITTED, R.WITHDRAWN}),
    R.SUBMITTED: frozenset({R.AWAITING_APPROVAL, R.QUEUED, R.REJECTED, R.IMPOSSIBLE}),
    R.AWAITING_APPROVAL: frozenset({R.QUEUED, R.REJECTED, R.WITHDRAWN, R.EXPIRED}),
    R.QUEUED: frozenset({R.GRANTED, R.WITHDRAWN, R.EXPIRED, R.IMPOSSIBLE}),
    R.GRANTED: frozenset({R.FULFILLED, R.QUEUED, R.IMPOSSIBLE, R.WITHDRAWN}),
}
LEASE_NEXT: dict[str, frozenset[str]] = {
    L.BOOKED: frozenset({L.PREPARING, L.ENDED}),
    L.PREPARING: frozenset({L.ACTIVE, L.FAILED, L.CLEANING}),
    L.ACTIVE: frozenset({L.ENDING, L.INTERRUPTED, L.FAILED}),
    L.INTERRUPTED: frozenset({L.ACTIVE, L.CLEANING, L.FAILED}),
    L.ENDING: frozenset({L.CLEANING}),
    L.CLEANING: frozenset({L.ENDED}),
    L.FAILED: frozenset({L.CLEANING}),
}
OPEN_REQUESTS = (R.SUBMITTED, R.AWAITING_APPROVAL, R.QUEUED, R.GRANTED)
LIVE_LEASES = (L.BOOKED, L.PREPARING, L.ACTIVE, L.INTERRUPTED, L.ENDING, L.CLEANING, L.FAILED)
WANTED_LEASES = (L.BOOKED, L.PREPARING, L.ACTIVE, L.INTERRUPTED)
WANTED_ON_NODE = (L.PREPARING, L.ACTIVE, L.INTERRUPTED)
LIVE_ON_NODE = (L.PREPARING, L.ACTIVE, L.INTERRUPTED, L.ENDING, L.CLEANING, L.FAILED)
RUNNING_LEASES = (L.ACTIVE, L.INTERRUPTED)
LEAVING_LEASES = (L.ENDING, L.CLEANING)
ENDING_LEASES = (L.ENDING, L.CLEANING, L.FAILED)


def why_told(*, is_extra: bool, is_preemptible: bool, is_for_nobody: bool = False) -> str:
    """Return why a lease that was told to go must go, as the stable code: idle, elastic, priority or reclaim.

    It goes for a request, or for nobody because it idles.
    """
    if is_for_nobody:
        return "idle"
    if is_extra:
        return "elastic"
    return "priority" if is_preemptible else "reclaim"
