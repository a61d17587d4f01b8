"""How many calls one person makes in a minute, over all processes, at next to no cost per call."""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.translation import ngettext
from redis.exceptions import RedisError
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request
from rest_framework.throttling import BaseThrottle

from portal.common.errors import TooManyCalls
from portal.common.live import redis_client

log = logging.getLogger(__name__)
WINDOW_S = 60
PARTS = 50  # a process tells the others each time it counted this part of the limit
LEAVE_ALONE_S = 10  # how long a store that did not answer is not asked again


@dataclass(slots=True)
class CallCount:
    """One person's calls in a minute: ``told`` is what the store knew last, ``untold`` came here since."""

    told: int = 0
    untold: int = 0


class CallTally:
    """Counts calls in this process and shares the sum with the others in steps.

    Only every fiftieth part of a limit is a trip to Redis, so the sum may fall short by that part per
    process. While Redis is away each process counts for itself. Safe to call from many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minute = -1
        self._counts: dict[str, CallCount] = {}
        self._ask_again_at = 0.0

    def add(self, who: str, *, limit: int, now: float) -> int:
        """Count one call at ``now`` (Unix seconds) and return how many are known in its minute."""
        minute = int(now // WINDOW_S)
        with self._lock:
            if minute != self._minute:
                self._minute, self._counts = minute, {}
            count = self._counts.setdefault(who, CallCount())
            count.untold += 1
            known = count.told + count.untold
            if count.untold < max(1, limit // PARTS) or now < self._ask_again_at:
                return known
            part, count.told, count.untold = count.untold, known, 0
        total = self._tell(f"berth:calls:{who}:{minute}", part, now)
        with self._lock:
            count.told = max(count.told, total)
            return count.told + count.untold

    def _tell(self, key: str, part: int, now: float) -> int:
        """Add a part to the sum of all processes and return it; 0 when the store is away."""
        try:
            with redis_client().pipeline(transaction=False) as pipe:
                pipe.incrby(key, part)
                pipe.expire(key, 2 * WINDOW_S)
                return int(pipe.execute()[0])
        except (RedisError, OSError) as error:
            self._ask_again_at = now + LEAVE_ALONE_S
            log.warning("calls are counted in this process alone: %s", error)
            return 0


tally = CallTally()


class PersonThrottle(BaseThrottle):
    """Refuses a person's calls beyond the reads or changes a minute in the settings; 0 there is no limit."""

    def allow_request(self, request: Request, _view: Any) -> bool:
        """Return True, or raise TooManyCalls until the minute is over."""
        is_read = request.method in SAFE_METHODS
        limit = settings.API_READS_PER_MINUTE if is_read else settings.API_CHANGES_PER_MINUTE
        if not limit or request.user.pk is None:
            return True
        now = timezone.now().timestamp()
        kind = "reads" if is_read else "changes"
        if tally.add(f"{request.user.pk}:{kind}", limit=limit, now=now) <= limit:
            return True
        raise TooManyCalls(
            ngettext(
                "You made more than %(limit)d call in this minute.",
                "You made more than %(limit)d calls in this minute.",
                limit,
            )
            % {"limit": limit},
            wait_s=math.ceil(WINDOW_S - now % WINDOW_S),
            limit=limit,
            kind=kind,
        )
