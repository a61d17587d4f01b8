"""What is sent to a contact point: the same sentences as on the pages, in the form that each kind reads."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from portal.notifications.models import ContactKind

# What a chat takes in one message, with room for what is around it; a mail takes what there is.
MOST_BYTES: Final = {
    ContactKind.SLACK: 12_000,
    ContactKind.FEISHU: 12_000,
    ContactKind.DINGTALK: 12_000,
    ContactKind.WECOM: 1_900,
    ContactKind.EMAIL: 200_000,
}


@dataclass(frozen=True, slots=True)
class NewsItem:
    """One sentence with what it is about: its kind as in the API, ``about`` a name, ``url`` whole or empty.

    ``files`` are whole addresses from which a program takes the files that belong to it, with a token of its reader.
    """

    kind: str
    text: str
    about: str
    url: str
    target: str
    at: datetime
    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HttpMessage:
    """A POST as it goes out."""

    url: str
    body: bytes
    headers: dict[str, str]


def as_text(items: Sequence[NewsItem]) -> str:
    """Return items as plain text, a paragraph each."""
    return "\n\n".join(
        "\n".join(line for line in (item.text, item.about, item.url) if line) for item in items
    )


def bundled(kind: str, items: Sequence[NewsItem]) -> list[int]:
    """Return how many of the items go into each message, in their order: a webhook hears of each by itself."""
    counts: list[int] = []
    room = 0
    for item in items:
        size = len(as_text([item]).encode()) + 2
        if kind == ContactKind.WEBHOOK or size > room:
            counts.append(0)
            room = MOST_BYTES.get(ContactKind(kind), 0)
        counts[-1] += 1
        room -= size
    return counts


def http_message(
    kind: str, address: str, secret: str, items: Sequence[NewsItem], *, uid: str, now: datetime
) -> HttpMessage:
    """Return what is posted to an address. ``uid`` is the same for each try of one message.

    A webhook is signed as Standard Webhooks says (standardwebhooks.com): HMAC-SHA256 over ``id.timestamp.body`` with
    the secret. Feishu and DingTalk sign time and secret as their documentation of custom robots says.
    """
    seconds = int(now.timestamp())
    body: dict[str, Any]
    headers = {"content-type": "application/json"}
    if kind == ContactKind.WEBHOOK:
        body = {
            "type": items[0].kind,
            "timestamp": items[0].at.isoformat(),
            "data": {
                "text": items[0].text,
                "about": items[0].about,
                "target": items[0].target,
                "url": items[0].url,
            },
        }
        if items[0].files:
            body["data"]["files"] = list(items[0].files)
        encoded = json.dumps(body, ensure_ascii=False).encode()
        said = f"{uid}.{seconds}.".encode() + encoded
        headers |= {
            "webhook-id": uid,
            "webhook-timestamp": str(seconds),
            "webhook-signature": "v1," + _signed(webhook_key(secret), said),
        }
        return HttpMessage(address, encoded, headers)
    text = as_text(items)
    if kind == ContactKind.SLACK:
        body = {"text": text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}
    elif kind == ContactKind.FEISHU:
        # A name such as <at user_id="all"> would call everybody.
        text = text.replace("<", "＜")
        body = {"msg_type": "text", "content": {"text": text}}
        if secret:
            body |= {"timestamp": str(seconds), "sign": _signed(f"{seconds}\n{secret}".encode(), b"")}
    else:
        body = {"msgtype": "text", "text": {"content": text}}
    if kind == ContactKind.DINGTALK and secret:
        milliseconds = seconds * 1000
        sign = _signed(secret.encode(), f"{milliseconds}\n{secret}".encode())
        parts = urlsplit(address)
        query = "&".join(filter(None, (parts.query, urlencode({"timestamp": milliseconds, "sign": sign}))))
        address = urlunsplit(parts._replace(query=query))
    return HttpMessage(address, json.dumps(body, ensure_ascii=False).encode(), headers)


def refusal(kind: str, status: int, answer: bytes) -> str:
    """Return why a message was not taken, "" when it was. Some chats answer 200 and say it in the body."""
    if not 200 <= status < 300:
        return f"answered {status}"
    if kind not in (ContactKind.FEISHU, ContactKind.DINGTALK, ContactKind.WECOM):
        return ""
    try:
        said = json.loads(answer)
    except (ValueError, RecursionError):
        return "answered something that is no JSON"
    if not isinstance(said, dict):
        return "answered something that is no JSON object"
    code = said.get("code", said.get("errcode", said.get("StatusCode", 0)))
    words = str(said.get("msg") or said.get("errmsg") or said.get("StatusMessage") or "")
    return "" if code == 0 else f"refused with {str(code)[:20]}: {words}"[:200]


def webhook_key(secret: str) -> bytes:
    """Return the key of a webhook's secret: what follows ``whsec_``, in Base64."""
    return base64.b64decode(secret.removeprefix("whsec_"))


def _signed(key: bytes, said: bytes) -> str:
    return base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
