"""How a message leaves the portal: never to an address of our own network, never after a redirect, never for long."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final
from urllib.parse import urlsplit

import httpx
from django.conf import settings
from django.core.mail import EmailMessage

from portal.common.certificates import trusted
from portal.notifications.messages import HttpMessage

WITHIN_S: Final = 8
MOST_ANSWER: Final = 4096


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that goes with a mail."""

    name: str
    content: bytes
    media_type: str


class Undeliverable(Exception):
    """A message did not leave, with the reason."""


def is_public(address: str) -> bool:
    """Return whether an IP address is one of the internet: no private, local, link or reserved one, in any notation."""
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo or (None, None))[1]
        if inner is not None:
            return is_public(str(inner))
        if ip.is_site_local or ip in ipaddress.ip_network("::/96"):
            return False
        # NAT64 leads to any IPv4 address, ours among them.
        if ip in ipaddress.ip_network("64:ff9b::/96"):
            return is_public(str(ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)))
    return ip.is_global and not ip.is_multicast


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What another server answered; of ``body`` only the begin."""

    status: int
    headers: Mapping[str, str]
    body: bytes


async def post(message: HttpMessage, threads: Executor) -> tuple[int, bytes]:
    """Send a message and return status and the begin of the answer; raises Undeliverable."""
    answer = await exchange(
        "POST", message.url, threads, headers=message.headers, body=message.body,
        may_be_private=settings.NOTIFY_PRIVATE_ADDRESSES,
    )  # fmt: skip
    return answer.status, answer.body


async def exchange(
    method: str,
    url: str,
    threads: Executor,
    *,
    headers: Mapping[str, str],
    body: bytes = b"",
    may_be_private: bool = False,
    most: int = MOST_ANSWER,
) -> HttpAnswer:
    """Ask another server and return its answer; raises Undeliverable.

    The name is looked up once, each address it has is looked at, and the connection goes to the one that was looked
    at: a name that answers differently the second time gains nothing. Names are looked up in ``threads``.
    """
    parts = urlsplit(url)
    try:
        async with asyncio.timeout(WITHIN_S):
            host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
            ip = await _address(host, port, threads, may_be_private=may_be_private)
            where = f"[{ip}]" if ":" in ip else ip
            target = parts._replace(netloc=f"{where}:{port}").geturl()
            name = f"[{host}]" if ":" in host else host
            sent = {**headers, "host": name if parts.port is None else f"{name}:{port}"}
            async with (
                httpx.AsyncClient(
                    verify=trusted(trust_env=False), trust_env=False, follow_redirects=False, timeout=WITHIN_S
                ) as client,
                client.stream(
                    method, target, content=body, headers=sent, extensions={"sni_hostname": host}
                ) as answer,
            ):
                said = b""
                async for piece in answer.aiter_raw(MOST_ANSWER):
                    said += piece
                    if len(said) >= most:
                        break
                return HttpAnswer(answer.status_code, answer.headers, said[:most])
    except TimeoutError:
        raise Undeliverable(f"no answer within {WITHIN_S} seconds") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
        raise Undeliverable(f"{type(error).__name__}: {error}"[:200]) from None


async def _address(host: str, port: int, threads: Executor, *, may_be_private: bool) -> str:
    look = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(threads, look)
    addresses = [str(info[4][0]) for info in found]
    if not may_be_private and not all(map(is_public, addresses)):
        raise Undeliverable("the address is inside a private network")
    return addresses[0]


def mail(to: str, subject: str, text: str, attachments: Sequence[Attachment] = ()) -> None:
    """Send a plain text with files by the installation's mail server; raises Undeliverable."""
    message = EmailMessage(subject, text, None, [to])
    for file in attachments:
        message.attach(file.name, file.content, file.media_type)
    try:
        message.send()
    except (OSError, ValueError) as error:
        raise Undeliverable(f"{type(error).__name__}: {error}"[:200]) from None
