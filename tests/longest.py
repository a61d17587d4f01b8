"""Which test files take long: a worker that gets one of them last keeps the others waiting.

Seconds as measured on two cores. They only say who begins; a file that is missing here, or gone, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

# The first two need no database, so nobody waits while the third file makes it.
SECONDS = {
    "tests/drill/test_short_drill.py": 75,
    "tests/agent/test_soak.py": 28,
    "tests/web/test_nonsense.py": 24,
    "tests/api/test_nonsense.py": 20,
    "tests/engine/test_no_ping_pong.py": 15,
    "tests/engine/test_gang.py": 15,
    "tests/engine/test_place_prr.py": 15,
    "tests/embedded/test_stack.py": 14,
    "tests/replay/test_queue.py": 13,
    "tests/frontend/test_live_in_browser.py": 12,
    "tests/portal/test_backup.py": 10,
    "tests/portal/test_calendar_walks.py": 10,
    "tests/portal/test_durations.py": 9,
    "tests/replay/test_forecast.py": 8,
    "tests/engine/test_sleep.py": 8,
    "tests/engine/test_properties.py": 8,
    "tests/agents/test_hardware_agent.py": 7,
    "tests/agents/test_node_life.py": 7,
    "tests/api/test_bad_input.py": 7,
    "tests/portal/test_audit_chain.py": 5,
    "tests/web/test_policies.py": 5,
    "tests/api/test_every_route.py": 5,
    "tests/engine/test_policy_body.py": 5,
    "tests/agents/test_agent_socket.py": 5,
}


def longest_first(items: Iterable[T], file_of: Callable[[T], str]) -> list[T]:
    """The same items, long files first; those of one file stay together in their order, as do all others."""
    return sorted(items, key=lambda item: -SECONDS.get(file_of(item), 0))
