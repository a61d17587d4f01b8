"""The decision: pure functions over an explicit state. Numpy, scipy and numba at most; no clock, no database."""

from scheduler.engine.capacity import free_units
from scheduler.engine.codec import snapshot_from_json, snapshot_to_json
from scheduler.engine.counter_offers import counter_offers
from scheduler.engine.events import Ended, Granted
from scheduler.engine.forecast import forecast
from scheduler.engine.plan import plan
from scheduler.engine.state import EngineState

__all__ = [
    "Ended",
    "EngineState",
    "Granted",
    "counter_offers",
    "forecast",
    "free_units",
    "plan",
    "snapshot_from_json",
    "snapshot_to_json",
]
