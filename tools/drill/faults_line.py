"""Faults of the line between an agent and the portal: cut, dropped, silent one way or both, slow, flapping."""

from __future__ import annotations

import time

from tools.drill.fault import FaultOutcome, Inject, NotObserved, Step
from tools.drill.proxy import UP
from tools.drill.stack import DrillStack, until


def cut(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    closed, refused = proxy.closed, proxy.refused
    proxy.cut()
    try:
        time.sleep(step.seconds)
        if not until(lambda: proxy.closed > closed or proxy.refused > refused, 6):
            raise NotObserved(f"nobody was connected to {step.node}")
    finally:
        proxy.heal()
    seen = f"{proxy.closed - closed} ends closed, {proxy.refused - refused} connections refused"
    return FaultOutcome(seen, time.monotonic(), step.node)


def drop(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    closed = proxy.closed
    until(lambda: bool(proxy._open), 10)
    proxy.drop()
    since = time.monotonic()
    if not until(lambda: proxy.closed > closed, 5):
        raise NotObserved(f"nobody was connected to {step.node}")
    return FaultOutcome(f"{proxy.closed - closed} ends of a connection closed", since, step.node)


def swallow(*directions: str) -> Inject:
    def inject(stack: DrillStack, step: Step) -> FaultOutcome:
        proxy = stack.nodes[step.node].proxy
        was = {name: proxy.lines[name].swallowed for name in directions}
        for name in directions:
            proxy.lines[name].is_swallowed = True
        try:
            time.sleep(step.seconds)
            lost = lambda: sum(proxy.lines[name].swallowed - was[name] for name in directions)  # noqa: E731
            # Nothing goes down a quiet line by itself: wait for the portal to have something to say.
            if not until(lambda: lost() > 0, 30):
                raise NotObserved(f"nothing was sent {' and '.join(directions)} on the line of {step.node}")
            seen = f"{lost()} bytes lost {' and '.join(directions)}"
        finally:
            proxy.heal()
        return FaultOutcome(seen, time.monotonic(), step.node)

    return inject


def delay(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    passed = proxy.lines[UP].passed
    for line in proxy.lines.values():
        line.delay_s = 0.7
    try:
        time.sleep(step.seconds)
    finally:
        proxy.heal()
    if proxy.lines[UP].passed == passed:
        raise NotObserved("nothing came through the slow line")
    return FaultOutcome(
        f"{proxy.lines[UP].passed - passed} bytes 0.7 s late each way", time.monotonic(), step.node
    )


def flap(stack: DrillStack, step: Step) -> FaultOutcome:
    proxy = stack.nodes[step.node].proxy
    closed, end = proxy.closed, time.monotonic() + step.seconds
    while time.monotonic() < end:
        until(lambda: bool(proxy._open), 3)
        proxy.drop()
        time.sleep(0.8)
    if proxy.closed == closed:
        raise NotObserved("no connection was there to be closed")
    return FaultOutcome(
        f"{(proxy.closed - closed) // 2} connections closed one after the other", time.monotonic(), step.node
    )
