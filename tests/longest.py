"""Which test files take long: a worker that gets one of them last keeps the others waiting.

Seconds as measured on two cores. They only say who begins; a file that is missing here, or gone, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")

SECONDS = {
    "tests/drill/test_short_drill.py": 57,
    "tests/gateway/test_gateway.py": 40,
    "tests/replay/test_queue.py": 25,
    "tests/portal/test_refusals.py": 24,
    "tests/frontend/test_live_in_browser.py": 24,
    "tests/embedded/test_stack.py": 20,
    "tests/gateway/test_apps.py": 20,
    "tests/portal/test_calendar_walks.py": 19,
    "tests/api/test_nonsense.py": 18,
    "tests/replay/test_forecast.py": 17,
    "tests/engine/test_gang.py": 15,
    "tests/engine/test_place_prr.py": 15,
    "tests/sso/test_signing_in.py": 15,
    "tests/portal/test_backup.py": 14,
    "tests/portal/test_preempting.py": 14,
    "tests/cli/test_policy_commands.py": 13,
    "tests/agent/test_soak.py": 13,
    "tests/portal/test_durations.py": 13,
    "tests/billing/test_random_lives.py": 12,
    "tests/api/test_every_route.py": 12,
    "tests/cli/test_commands.py": 11,
    "tests/demo/test_first_minute.py": 11,
    "tests/web/test_nonsense.py": 10,
    "tests/web/test_admin_invoices.py": 10,
    "tests/web/test_reports.py": 9,
    "tests/cli/test_setting_up.py": 8,
    "tests/hostile/test_forms.py": 8,
    "tests/packaging/test_debian.py": 7,
    "tests/cli/test_wishes.py": 7,
    "tests/web/test_admin_finance.py": 6,
    "tests/web/test_node_health.py": 6,
    "tests/engine/test_no_ping_pong.py": 6,
    "tests/engine/test_properties.py": 6,
    "tests/api/test_schema.py": 6,
    "tests/agents/test_hardware_agent.py": 6,
}


def longest_first(items: Iterable[T], file_of: Callable[[T], str]) -> list[T]:
    """The same items, long files first; those of one file stay together in their order, as do all others."""
    return sorted(items, key=lambda item: -SECONDS.get(file_of(item), 0))
