"""The files of a report that is mailed: made when the mail goes out, with the rights that its reader has then."""

from __future__ import annotations

from contextlib import closing
from typing import IO, cast

from django.utils import translation
from django.utils.translation import gettext as _

from portal.billing.mailings import KIND
from portal.billing.periods import period_named
from portal.common.errors import BerthError
from portal.notifications.models import Notification
from portal.notifications.outgoing import Attachment, Undeliverable
from portal.teams.selectors import Rights
from portal.web.reports.page import file_of

MOST_BYTES = (
    15_000_000  # of the files of one mail; mail servers take some 25 MB of text, a third more than the bytes
)


def files_of_news(news: Notification) -> list[Attachment]:
    """Return the files that belong to a notification, none for most; raises Undeliverable where one cannot be made."""
    if news.kind != KIND:
        return []
    period = period_named(str(news.facts.get("month")))
    found: list[Attachment] = []
    size = 0
    with translation.override(str(news.facts.get("language"))):
        for path in news.facts.get("files", ()):
            kind = str(path).partition("?")[0].rstrip("/").rpartition("/")[2]
            try:
                if period is None:
                    raise Undeliverable(f"no month {news.facts.get('month')}")
                answer = file_of(
                    Rights(news.user), period, kind, slug=str(news.facts.get("team", "")), person=""
                )
            except BerthError as error:
                raise Undeliverable(f"{kind}: {error.detail or error.title}"[:200]) from error
            # Not by closing the answer: that would say that a request is over, and take our connection away.
            with closing(cast(IO[bytes], answer.file_to_stream)) as file:
                content = file.read()
            size += len(content)
            if size > MOST_BYTES:
                said = _("%(file)s is too large to be mailed: it is at the address above.") % {"file": kind}
                found.append(Attachment("README.txt", said.encode(), "text/plain"))
                break
            found.append(Attachment(answer.filename, content, answer.headers["Content-Type"]))
    return found
