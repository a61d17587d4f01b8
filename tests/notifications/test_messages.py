"""What goes out and where to: signatures, chats, and addresses that are ours."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from portal.notifications.messages import (
    MOST_BYTES,
    HttpMessage,
    NewsItem,
    as_text,
    bundled,
    http_message,
    refusal,
)
from portal.notifications.outgoing import Undeliverable, is_public, post

THREADS = ThreadPoolExecutor(1)
AT = datetime(2026, 3, 2, 12, tzinfo=UTC)
ITEM = NewsItem("lease.failed", "It failed.", '<at user_id="all"> & co', "https://berth.test/x", "lse-1", AT)


def made(kind: str, secret: str = "", address: str = "https://example.org/hook?token=1") -> HttpMessage:
    return http_message(kind, address, secret, [ITEM], uid="dlv-7", now=AT)


def test_a_webhook_is_signed_as_standard_webhooks_says() -> None:
    key = b"k" * 24
    message = made("webhook", "whsec_" + base64.b64encode(key).decode())

    said = f"dlv-7.{int(AT.timestamp())}.".encode() + message.body
    wanted = base64.b64encode(hmac.new(key, said, hashlib.sha256).digest()).decode()
    assert message.headers["webhook-signature"] == f"v1,{wanted}"
    assert json.loads(message.body)["data"]["target"] == "lse-1"


def test_chats_get_the_form_they_read_and_no_name_calls_everybody() -> None:
    assert "<" not in json.loads(made("slack").body)["text"]
    feishu = json.loads(made("feishu", "s3cret").body)
    assert "<" not in feishu["content"]["text"]
    key = f"{int(AT.timestamp())}\ns3cret".encode()
    assert feishu["sign"] == base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
    query = parse_qs(urlsplit(made("dingtalk", "s3cret").url).query)
    said = f"{int(AT.timestamp()) * 1000}\ns3cret".encode()
    assert query["token"] == ["1"]
    assert query["sign"] == [base64.b64encode(hmac.new(b"s3cret", said, hashlib.sha256).digest()).decode()]
    assert json.loads(made("wecom").body)["msgtype"] == "text"


def test_what_piles_up_is_cut_between_messages_and_never_lost() -> None:
    counts = bundled("wecom", [ITEM] * 100)

    assert sum(counts) == 100
    assert max(len(as_text([ITEM] * count).encode()) for count in counts) <= MOST_BYTES["wecom"]
    assert bundled("webhook", [ITEM] * 3) == [1, 1, 1]
    assert bundled("email", [ITEM] * 100) == [100]
    assert bundled("slack", [replace(ITEM, text="x" * 20_000)] * 2) == [1, 1]


@pytest.mark.parametrize(
    ("kind", "status", "answer", "why"),
    [
        ("webhook", 204, b"", ""),
        ("webhook", 302, b"", "answered 302"),
        ("slack", 200, b"ok", ""),
        (
            "feishu",
            200,
            b'{"code": 19024, "msg": "Key Words Not Found"}',
            "refused with 19024: Key Words Not Found",
        ),
        ("dingtalk", 200, b'{"errcode": 0, "errmsg": "ok"}', ""),
        ("wecom", 200, b"<html>", "answered something that is no JSON"),
        ("wecom", 200, b"[" * 4096, "answered something that is no JSON"),
        ("wecom", 200, b"[]", "answered something that is no JSON object"),
    ],
)
def test_a_chat_that_refuses_says_so_in_its_answer(kind: str, status: int, answer: bytes, why: str) -> None:
    assert refusal(kind, status, answer) == why


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "192.168.0.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1", "::1", "::",
        "fe80::1", "fd00::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:0a00:0001::", "ff02::1",
        "fec0::1", "::127.0.0.1",
    ],
)  # fmt: skip
def test_addresses_of_our_own_networks_are_known(address: str) -> None:
    assert not is_public(address)


def test_the_internet_is_public() -> None:
    assert is_public("1.1.1.1")
    assert is_public("2606:4700:4700::1111")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://localhost:1/", "http://[::1]:1/"])
def test_nothing_is_sent_into_our_own_network(url: str) -> None:
    with pytest.raises(Undeliverable, match="private network"):
        asyncio.run(post(HttpMessage(url, b"{}", {}), THREADS))


def test_addresses_of_chats_are_in_no_log(settings: Any) -> None:
    assert settings.LOGGING["loggers"]["httpx"]["level"] == "WARNING"


def test_a_redirect_is_an_answer_and_not_followed(settings: Any) -> None:
    """The connection goes to the address that was looked at, with the name in its headers."""
    settings.NOTIFY_PRIVATE_ADDRESSES = True
    heard: list[bytes] = []

    async def both() -> tuple[int, bytes]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(
                b"HTTP/1.1 307 x\r\nlocation: http://169.254.169.254/\r\ncontent-length: 3\r\n\r\nabc"
            )
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, family=socket.AF_INET)
        async with server:
            port = server.sockets[0].getsockname()[1]
            return await post(
                HttpMessage(f"http://127.0.0.1:{port}/x", b"{}", {"content-type": "application/json"}),
                THREADS,
            )

    assert asyncio.run(both()) == (307, b"abc")
    assert heard[0].startswith(b"POST /x HTTP/1.1\r\n")
    assert b"127.0.0.1:" in heard[0]
