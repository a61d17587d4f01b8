"""The tag of an image becomes a digest when its job is handed in, by asking its registry; a real one on this host."""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import IntegrityError, connection, transaction

from nodeagent.protocol.images import ImageReference
from nodeagent.protocol.jobs import order_of
from portal.agents.desired import desired_state
from portal.common import outbox
from portal.fleet.models import Node
from portal.jobs import digests as digests_module
from portal.jobs import registry as registry_module
from portal.jobs.digests import RESOLVE, resolve_digests
from portal.jobs.images import store_allowed_images
from portal.jobs.models import Job
from portal.jobs.registry import UnresolvedError, digest_of
from portal.notifications.outgoing import HttpAnswer
from tests.jobs.test_jobs import hand_in
from tests.portal.builders import World

pytestmark = pytest.mark.django_db
FIRST, SECOND = (f"sha256:{digit * 64}" for digit in "ab")


@dataclass
class Registry:
    """A registry with one image per tag; ``asked`` are the requests that came."""

    tags: dict[str, str] = field(default_factory=dict)
    token: str = ""
    realm: str = ""
    digests_in_headers: bool = True
    body: bytes = b"{}"
    asked: list[str] = field(default_factory=list)
    host: str = ""

    def answer(self, to: Any) -> None:
        self.asked.append(f"{to.command} {to.path}")
        if to.path.startswith("/token"):
            self._say(to, 200, json.dumps({"token": self.token}).encode())
        elif self.token and to.headers.get("authorization") != f"Bearer {self.token}":
            realm = self.realm or f"http://{self.host}/token"
            to.send_response(401)
            to.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="registry"')
            to.end_headers()
        else:
            digest = self.tags.get(to.path.rpartition("/")[2], "")
            headers = {"Docker-Content-Digest": digest} if digest and self.digests_in_headers else {}
            self._say(to, 200 if digest else 404, self.body, headers)

    def _say(self, to: Any, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        to.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            to.send_header(name, value)
        to.end_headers()
        if to.command == "GET":
            to.wfile.write(body)


@pytest.fixture
def registry(settings) -> Iterator[Registry]:
    """A registry that the operator has named, since it lies on this host and speaks plain HTTP."""
    registry = Registry({"2.9": FIRST})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.answer(self)

        do_HEAD = do_GET  # noqa: N815 - as the library looks for it

        def log_message(self, *words: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.host = f"127.0.0.1:{server.server_port}"
        settings.IMAGE_REGISTRIES = [f"http://{registry.host}"]
        thread = threading.Thread(target=server.serve_forever, args=[0.01], daemon=True)
        thread.start()
        yield registry
        server.shutdown()
        thread.join()


@pytest.fixture
def image(world: World, registry: Registry) -> str:
    Node.objects.update(features=["jobs", "containers"])
    names = [f"{registry.host}/ml/*", "registry.example/ml/*"]
    team, rights = world.team("perception"), world.rights("operator")
    store_allowed_images(team=team, rights=rights, names=names, now=world.now)
    return f"{registry.host}/ml/pytorch:2.9"


def digests() -> list[str]:
    return list(Job.objects.order_by("id").values_list("image_digest", flat=True))


def test_array_runs_in_the_image_that_its_tag_meant_when_it_was_handed_in(
    world: World, registry: Registry, image: str
) -> None:
    hand_in(world, image=image, array="1-4%2")

    assert resolve_digests(now=world.now) == 1
    registry.tags["2.9"] = SECOND
    world.turn()
    desired = desired_state(world.nodes["gpu-01"].pk, now=world.now, features=["jobs", "containers"])

    assert digests() == [FIRST] * 4
    assert registry.asked == ["HEAD /v2/ml/pytorch/manifests/2.9"]  # once for all of them
    name = image.removesuffix(":2.9")
    assert {order_of(lease.job).image for lease in desired.leases} == {f"{name}@{FIRST}"}
    assert resolve_digests(now=world.now + timedelta(minutes=1)) == 0


def test_job_handed_in_nudges_and_never_waits(
    world: World, image: str, monkeypatch, django_capture_on_commit_callbacks
) -> None:
    nudged: list[str] = []
    monkeypatch.setattr(outbox, "nudge", nudged.append)

    with django_capture_on_commit_callbacks(execute=True):
        hand_in(world, image=image)
        hand_in(world, image=f"registry.example/ml/x@{SECOND}")
        hand_in(world, image="oci:pytorch:2.9")
        hand_in(world)

    assert nudged.count(RESOLVE) == 1
    assert digests() == ["", SECOND, "", ""]


def test_token_for_everybody_is_asked_for(world: World, registry: Registry, image: str) -> None:
    registry.token = "s3cret"
    hand_in(world, image=image)

    resolve_digests(now=world.now)

    assert digests() == [FIRST]
    assert registry.asked[1] == "GET /token?scope=repository%3Aml%2Fpytorch%3Apull&service=registry"


def test_registry_that_names_no_digest_is_read(world: World, registry: Registry, image: str) -> None:
    registry.digests_in_headers, registry.body = False, b'{"schemaVersion": 2}'
    hand_in(world, image=image)

    resolve_digests(now=world.now)

    assert digests() == [f"sha256:{hashlib.sha256(registry.body).hexdigest()}"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"tags": {}},
        {"tags": {"2.9": "sha256:short"}},
        {"token": "x", "realm": "https://localhost/token"},
        {"token": "x", "realm": "file:///etc/passwd"},
        {"token": "x", "realm": "http://169.254.169.254/latest"},
        {"token": "a b"},
        {"digests_in_headers": False, "body": b"x" * (4 * 2**20 + 2)},
    ],
)  # fmt: skip
def test_what_no_registry_says_stays_a_tag_and_is_asked_again_for_a_while(
    world: World, registry: Registry, image: str, wrong: dict[str, Any]
) -> None:
    for name, value in wrong.items():
        setattr(registry, name, value)
    hand_in(world, image=image)

    counts = [resolve_digests(now=world.now + timedelta(seconds=after)) for after in (0, 10, 40, 601)]

    assert counts == [1, 0, 1, 0]
    assert digests() == [""]


def test_nobody_reaches_into_the_private_network_by_the_name_of_an_image(
    world: World, registry: Registry, image: str, settings
) -> None:
    settings.IMAGE_REGISTRIES = []
    hand_in(world, image=image)

    resolve_digests(now=world.now)

    assert digests() == [""]
    assert registry.asked == []


def test_registry_that_hangs_up_keeps_no_other_from_being_asked(
    world: World, registry: Registry, image: str, settings
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        gone = f"127.0.0.1:{closed.getsockname()[1]}"
    settings.IMAGE_REGISTRIES = [*settings.IMAGE_REGISTRIES, f"http://{gone}"]
    store_allowed_images(
        team=world.team("perception"), rights=world.rights("operator"),
        names=[f"{gone}/ml/*", f"{registry.host}/ml/*"], now=world.now,
    )  # fmt: skip
    hand_in(world, image=f"{gone}/ml/pytorch")
    hand_in(world, image=image)

    resolve_digests(now=world.now)

    assert digests() == ["", FIRST]


def test_name_that_nobody_answers_for_holds_no_worker_back(
    world: World, registry: Registry, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, looked_up = threading.Event(), socket.getaddrinfo

    def look(host: str, *more: Any, **words: Any) -> Any:
        if host == "registry.example":
            found.wait(60)
        return looked_up(host, *more, **words)

    monkeypatch.setattr(socket, "getaddrinfo", look)
    monkeypatch.setattr(digests_module, "ALL_WITHIN_S", 1)
    hand_in(world, image="registry.example/ml/pytorch:2.9")
    hand_in(world, image=image)
    begun = time.monotonic()

    try:
        assert resolve_digests(now=world.now) == 2
        assert time.monotonic() - begun < 30
    finally:
        found.set()
    assert digests() == ["", FIRST]


def test_while_one_worker_asks_no_other_does(
    world: World, registry: Registry, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_in(world, image=image)
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", [digests_module.ASKING_LOCK])
            assert resolve_digests(now=world.now) == 0
            cursor.execute("SELECT pg_advisory_unlock(%s)", [digests_module.ASKING_LOCK])
    finally:
        other.close()
    assert registry.asked == []

    nudged: list[str] = []
    monkeypatch.setattr(outbox, "nudge", nudged.append)
    monkeypatch.setattr(digests_module, "AT_ONCE", 1)
    hand_in(world, image=image.replace("2.9", "3.0"))
    counts = [resolve_digests(now=world.now) for _turn in range(3)]

    assert (counts, nudged) == ([1, 1, 0], [RESOLVE])
    assert digests() == [FIRST, ""]


def test_registry_of_anybody_names_no_server_of_the_operator_s_network(
    settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.IMAGE_REGISTRIES = ["inside.example"]
    asked: dict[str, bool] = {}

    async def exchange(
        method: str, url: str, threads: Any, *, may_be_private: bool, **more: Any
    ) -> HttpAnswer:
        asked[url.partition("?")[0]] = may_be_private
        challenge = {"www-authenticate": 'Bearer realm="https://inside.example/token"'}
        return HttpAnswer(401, challenge, b"") if method == "HEAD" else HttpAnswer(200, {}, b'{"token": "x"}')

    monkeypatch.setattr(registry_module, "exchange", exchange)
    for name in ("outside.example", "inside.example"):
        with pytest.raises(UnresolvedError), ThreadPoolExecutor(1) as threads:
            async_to_sync(digest_of)(ImageReference(f"{name}/ml/x"), threads)
        assert asked.pop("https://inside.example/token") is (name == "inside.example")


def test_job_that_has_begun_keeps_what_it_runs_in(world: World, image: str) -> None:
    (job,) = hand_in(world, image=image)
    world.turn()
    Job.objects.filter(pk=job.pk).update(attempts=1)

    assert resolve_digests(now=world.now) == 0


def test_digest_that_is_known_is_never_another(world: World, image: str) -> None:
    hand_in(world, image=image)
    resolve_digests(now=world.now)

    for other in (SECOND, ""):
        with pytest.raises(IntegrityError), transaction.atomic():
            Job.objects.update(image_digest=other)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.update(image_digest="latest")


def test_operator_may_have_no_registry_asked(world: World, registry: Registry, image: str, settings) -> None:
    settings.RESOLVE_IMAGES = False
    hand_in(world, image=image)

    assert resolve_digests(now=world.now) == 0
    assert registry.asked == []
