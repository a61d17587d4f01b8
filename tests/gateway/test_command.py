"""``berth terminal`` at a gateway: what is piped in is typed, and the shell's status is the command's."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace
from typing import Any

import pytest

from portal.cli import terminal as command
from tests.gateway.test_gateway import Place, place  # noqa: F401
from tests.portal.builders import World

pytestmark = pytest.mark.django_db(transaction=True)


async def test_piped_lines_are_typed_and_the_shells_status_comes_back(
    place: Place,  # noqa: F811
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: Any,
) -> None:
    read, write = os.pipe()
    os.write(write, b"echo $((6*7))-$BERTH_LEASE\nexit 5\n")
    os.close(write)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(fileno=lambda: read))
    loop = asyncio.get_running_loop()

    def post(path: str) -> dict[str, Any]:
        secret = asyncio.run_coroutine_threadsafe(place.ticket(), loop).result(10)
        return {"ticket": secret, "gateways": [f"ws://127.0.0.1:{place.port}/streams/v1/terminal"]}

    code = await command._keep(SimpleNamespace(post=post), place.lease.uid)  # type: ignore[arg-type]
    os.close(read)

    assert code == 5
    assert f"42-{place.lease.uid}".encode() in capsysbinary.readouterr().out
