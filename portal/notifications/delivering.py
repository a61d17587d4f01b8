"""Messages to contact points on their way: claimed, sent side by side, tried again, given up. Rows are the work."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

from django.db import transaction
from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from portal.accounts.selectors import may_enter
from portal.accounts.zones import zone_of
from portal.notifications.contact_points import address_of, confirmation_of, secret_of
from portal.notifications.hours import may_go_at
from portal.notifications.messages import NewsItem, as_text, bundled, http_message, refusal
from portal.notifications.models import (
    ContactKind,
    ContactPoint,
    Delivery,
    DeliveryPurpose,
    DeliveryState,
    Notification,
)
from portal.notifications.outgoing import Attachment, Undeliverable, mail, post

log = logging.getLogger(__name__)
AT_ONCE: Final = 40
ALL_WITHIN_S: Final = 10
CLAIM: Final = timedelta(seconds=60)
# How long after each failed try the next one comes; after the last it is given up.
AGAIN_AFTER: Final = tuple(timedelta(seconds=s) for s in (60, 300, 1800, 7200, 43_200))
KEPT: Final = timedelta(days=30)
CONFIRM_PATH: Final = "/contact-points/confirm/"
# Words the notifications of one person, in the language and time zone that are active.
Attacher = Callable[[Notification], list[Attachment]]
Reader = Callable[[list[Notification]], list[tuple[str, str, str]]]


@dataclass(frozen=True, slots=True)
class Parcel:
    """What goes to one contact point in one message: as much news as a chat or a mail takes, one in a webhook."""

    contact: ContactPoint
    deliveries: tuple[Delivery, ...]
    items: tuple[NewsItem, ...]
    now: datetime
    attachments: tuple[Attachment, ...] = ()

    @property
    def uid(self) -> str:
        """The name of the message, the same for each try."""
        return f"dlv-{self.deliveries[0].pk}"


def deliver_due(read: Reader, attach: Attacher = lambda _news: [], *, now: datetime) -> int:
    """Send what is due and note how it went; returns how many messages were tried.

    ``read`` returns sentence, name and path of each notification, ``attach`` the files that go with it by mail; it may
    raise Undeliverable. Claims are committed before anything is sent, so
    nothing is sent inside a transaction and two workers never send the same message at once. It takes at most some
    ten seconds, and one worker at a time: the others go on granting and metering.
    """
    parcels = _claim(read, now=now)
    if not parcels:
        return 0
    ready = []
    for parcel in parcels:
        try:
            ready.append(_packed(parcel, attach))
        except Exception as failure:
            log.exception("the files of a mail cannot be made")
            _note(parcel, f"its files could not be made: {failure}", now=now)
    for parcel, error in zip(ready, asyncio.run(_send_all(ready)) if ready else [], strict=True):
        _note(parcel, error, now=now)
    return len(parcels)


def _packed(parcel: Parcel, attach: Attacher) -> Parcel:
    """Return a parcel with the files of its news, which only a mail takes."""
    if parcel.contact.kind != ContactKind.EMAIL:
        return parcel
    news = [row.notification for row in parcel.deliveries if row.notification is not None]
    files = tuple(file for one in news for file in attach(one))
    return replace(parcel, attachments=files) if files else parcel


def forget_deliveries(*, now: datetime) -> int:
    """Forget what was sent, or given up, a month ago; returns how many rows went."""
    gone, _models = Delivery.objects.filter(ended_at__lt=now - KEPT).delete()
    return gone


@transaction.atomic
def _claim(read: Reader, *, now: datetime) -> list[Parcel]:
    waiting = Delivery.objects.filter(state=DeliveryState.WAITING)
    if waiting.filter(claimed_until__gt=now).exists():
        return []
    due = (
        waiting.select_for_update(skip_locked=True, of=("self",))
        .filter(due_at__lte=now)
        .select_related("contact__user", "notification")
        .order_by("due_at", "pk")[:AT_ONCE]
    )
    by_contact: dict[int, list[Delivery]] = defaultdict(list)
    for row in due:
        if _may_go(row, now):
            by_contact[row.contact_id].append(row)
    parcels: list[Parcel] = []
    for rows in by_contact.values():
        try:
            with transaction.atomic():
                parcels += _parcels(rows, read, now)
        except Exception:  # what cannot be worded today must not keep everybody else's news back
            log.exception("news for contact point %s cannot be worded", rows[0].contact_id)
            for row in rows:
                _end(row, DeliveryState.FAILED, "it could not be worded", now)
    claimed = [row.pk for parcel in parcels for row in parcel.deliveries]
    Delivery.objects.filter(pk__in=claimed).update(claimed_until=now + CLAIM)
    return parcels


def _may_go(row: Delivery, now: datetime) -> bool:
    """Return whether a message may go now, and put one off that comes in quiet hours or belongs into a digest.

    Decided once, while it is due at the very moment it was told.
    """
    contact = row.contact
    if row.purpose != DeliveryPurpose.NEWS:
        return True
    if not contact.is_on or not may_enter(contact.user):
        _end(row, DeliveryState.FAILED, "switched off", now)
        return False
    if row.attempts or row.due_at > row.told_at:
        return True
    at = may_go_at(contact, row.told_at, zone_of(contact.user) or timezone.get_default_timezone())
    if at <= now:
        return True
    Delivery.objects.filter(pk=row.pk).update(due_at=at)
    return False


def _parcels(rows: list[Delivery], read: Reader, now: datetime) -> list[Parcel]:
    """Return the messages of one contact point: tests and confirmations by themselves, news together."""
    contact = rows[0].contact
    zone = zone_of(contact.user) or timezone.get_default_timezone()
    with translation.override(contact.user.language or None), timezone.override(zone):
        parcels = [
            Parcel(contact, (row,), (_own_words(row),), now) for row in rows if row.notification is None
        ]
        told = [(row, row.notification) for row in rows if row.notification is not None]
        items = [
            NewsItem(
                news.kind,
                text,
                about,
                contact.origin + path if path else "",
                news.target,
                news.created_at,
                tuple(contact.origin + str(file) for file in news.facts.get("files", ())),
            )
            for (_row, news), (text, about, path) in zip(
                told, read([news for _row, news in told]), strict=True
            )
        ]
    begin = 0
    for count in bundled(contact.kind, items):
        end = begin + count
        parcels.append(
            Parcel(contact, tuple(row for row, _news in told[begin:end]), tuple(items[begin:end]), now)
        )
        begin = end
    return parcels


def _own_words(row: Delivery) -> NewsItem:
    contact = row.contact
    if row.purpose == DeliveryPurpose.CONFIRMATION:
        text = _("Open this link within a day, signed in as %(who)s, and Berth writes to this mailbox.")
        path = f"{CONFIRM_PATH}{confirmation_of(contact)}/"
        return NewsItem(
            "contact.confirmation",
            text % {"who": contact.user.username},
            "",
            contact.origin + path,
            "",
            row.told_at,
        )
    text = _("This is a test of the contact point “%(name)s”: it works.") % {"name": contact.name}
    return NewsItem("contact.test", text, "", contact.origin + "/contact-points/", "", row.told_at)


async def _send_all(parcels: list[Parcel]) -> list[str]:
    """Send side by side and return why each was not taken; who is not through in time is told so and tried again."""
    threads = ThreadPoolExecutor(max_workers=AT_ONCE, thread_name_prefix="contact")
    tasks = [asyncio.create_task(_send(parcel, threads)) for parcel in parcels]
    _done, late = await asyncio.wait(tasks, timeout=ALL_WITHIN_S)
    for task in late:
        task.cancel()
    # A thread that still waits for a mail server ends by its own time-out; nobody waits for it.
    threads.shutdown(wait=False, cancel_futures=True)
    return [f"no answer within {ALL_WITHIN_S} seconds" if task in late else task.result() for task in tasks]


async def _send(parcel: Parcel, threads: ThreadPoolExecutor) -> str:
    """Send one message and return why it was not taken, "" when it was; never raises, for the sake of the others."""
    contact, items = parcel.contact, list(parcel.items)
    address, secret = address_of(contact), secret_of(contact)
    if address is None or secret is None:
        return "stored under a key that is gone: remove it and make it anew"
    try:
        if contact.kind == ContactKind.EMAIL:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(
                threads, mail, address, _subject(parcel), as_text(items), parcel.attachments
            )
            return ""
        message = http_message(contact.kind, address, secret, items, uid=parcel.uid, now=parcel.now)
        return refusal(contact.kind, *await post(message, threads))
    except Undeliverable as error:
        return str(error)
    except Exception as error:
        log.exception("a message to contact point %s could not be sent", contact.pk)
        return f"it could not be sent ({type(error).__name__})"


def _subject(parcel: Parcel) -> str:
    with translation.override(parcel.contact.user.language or None):
        first = parcel.items[0]
        if len(parcel.items) == 1:
            return f"Berth: {first.about or first.text}"[:150].replace("\n", " ")
        count = len(parcel.items)
        return ngettext("Berth: %(n)d notification", "Berth: %(n)d notifications", count) % {"n": count}


def _note(parcel: Parcel, error: str, *, now: datetime) -> None:
    rows = Delivery.objects.filter(pk__in=[row.pk for row in parcel.deliveries], state=DeliveryState.WAITING)
    if not error:
        rows.update(state=DeliveryState.SENT, ended_at=now, error="", claimed_until=None)
        return
    for row in parcel.deliveries:
        if row.attempts >= len(AGAIN_AFTER):
            _end(row, DeliveryState.FAILED, error, now)
        else:
            Delivery.objects.filter(pk=row.pk, state=DeliveryState.WAITING).update(
                attempts=row.attempts + 1,
                due_at=now + AGAIN_AFTER[row.attempts],
                error=error[:200],
                claimed_until=None,
            )


def _end(row: Delivery, state: str, error: str, now: datetime) -> None:
    Delivery.objects.filter(pk=row.pk, state=DeliveryState.WAITING).update(
        state=state, ended_at=now, error=error[:200], claimed_until=None
    )
