from __future__ import annotations

import asyncio
import json
import sys
import time
from argparse import ArgumentTypeError, BooleanOptionalAction
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from portal.demo.trace import bill_checks, making_room, mapping, report, tokens
from portal.demo.trace.calls import ApiRefusal, Origin, TraceClient
from portal.demo.trace.play import Play, SubmitRate
from portal.demo.trace.rows import Pod, TraceError, read_pods

CONNECTIONS = 8
DEFAULT_URL = "http://127.0.0.1:8000"


class Command(BaseCommand):
    """Play the rows of a public trace against a running portal, from outside: HTTP and WebSocket only."""

    help = "Submit a trace's pods as requests, follow them to the end, and hold bill against clocks."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the list, how much of it, how fast, and where to."""
        parser.add_argument("pods", type=Path, help="pod list, CSV or CSV.gz")
        parser.add_argument("--limit", type=_positive_int, help="only the first N rows by arrival")
        parser.add_argument("--speed", type=_positive, default=1000.0, help="divide lifetimes by S (1000)")
        parser.add_argument("--rate", type=_positive, help="arrivals per second (as fast as accepted)")
        parser.add_argument("--parallel", type=_positive_int, default=4, help="requests on their way (4)")
        parser.add_argument("--url", default=DEFAULT_URL, help=f"the portal ({DEFAULT_URL})")
        parser.add_argument("--tokens", type=Path, help="JSON file: token by person, one named operator")
        parser.add_argument(
            "--make-room",
            action=BooleanOptionalAction,
            help="first release what these people hold and withdraw what they wait for "
            "(done by itself where the command makes tokens of the demo people)",
        )
        parser.add_argument("--patience", type=_positive, default=300.0, help="seconds without any change")
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read everything first, play, print the answer; exit 1 when a promise was broken."""
        self.is_quiet = bool(options["json"])
        try:
            pods = read_pods(options["pods"], limit=options["limit"])
            origin = Origin.of(options["url"])
            found = asyncio.run(self._play(pods, origin, self._tokens(options), options))
        except (TraceError, mapping.MappingError, tokens.NoTokens, ValueError) as error:
            raise CommandError(str(error)) from error
        except (ApiRefusal, OSError) as error:
            raise CommandError(f"the play was given up: {error}") from error
        self.stdout.write(json.dumps(found) if self.is_quiet else report.sentences(found))
        if not all(found["invariants"].values()):
            sys.exit(1)

    def _tokens(self, options: dict[str, Any]) -> dict[str, str]:
        askers = {a.person for _priority, some in mapping.BY_QOS.values() for a in some}
        people = [*sorted(askers), tokens.OPERATOR]
        if options["tokens"]:
            return tokens.tokens_from(options["tokens"], people)
        made = tokens.make_tokens(people)
        self._tell(f"made one-day tokens for {', '.join(made)}")
        return made

    async def _play(
        self, pods: Sequence[Pod], origin: Origin, held: dict[str, str], options: dict[str, Any]
    ) -> dict[str, Any]:
        api = TraceClient(origin, connections=CONNECTIONS + options["parallel"])
        operator = held.pop(tokens.OPERATOR)
        try:
            wishes = await self._wishes(api, pods, operator, options["speed"])
            if options["make_room"] or (options["make_room"] is None and not options["tokens"]):
                released, withdrawn = await making_room.make_room(api, held)
                self._tell(f"made room: {released} leases released, {withdrawn} requests withdrawn")
            since = await bill_checks.portal_time(api, operator=operator)
            pace = SubmitRate(options["rate"], options["parallel"], options["patience"])
            name = f"trace-{time.time_ns():x}"
            play = Play(api, wishes, held, pace=pace, name=name, since=since, tell=self._tell)
            wall_s = await play.run()
            played = await _reckon(api, play, len(pods) - len(wishes), since, operator, wall_s)
            return report.answer(played)
        finally:
            await api.close()

    async def _wishes(
        self, api: TraceClient, pods: Sequence[Pod], token: str, speed: float
    ) -> list[mapping.TraceRequest]:
        flavors = (await api.get("/api/v1/flavors/", token=token))["results"]
        mapper = mapping.Mapper(mapping.offers_of(flavors), speed=speed)
        with_gpu = [pod for pod in pods if pod.num_gpu]
        self._tell(mapping.tables())
        return [mapper.wish(pod, position) for position, pod in enumerate(with_gpu)]

    def _tell(self, text: str) -> None:
        """Say something on the way: never among the JSON."""
        self.stderr.write(text)


async def _reckon(
    api: TraceClient, play: Play, skipped: int, since: str, operator: str, wall_s: float
) -> report.PlayResult:
    leases = {run.lease: run.wish.count for run in play.runs if run.lease}
    clocks = await bill_checks.clocks(api, leases, since=since, operator=operator)
    now = await bill_checks.portal_time(api, operator=operator)
    teams = {run.wish.asker.team for run in play.runs}
    bills = await bill_checks.bills(api, teams, {since[:7], now[:7]}, operator=operator)
    overlaps = await bill_checks.overlaps(api, operator=operator)
    return report.PlayResult(play.runs, skipped, overlaps, clocks, bills, wall_s, api.waits)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _positive_int(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**9):
        raise ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)
