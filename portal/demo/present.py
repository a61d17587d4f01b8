"""The running part of the story: real requests through the real service, granted by the real scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from portal.accounts.models import User
from portal.fleet.models import Node
from portal.leases.attendees import AttendeeList
from portal.leases.maintenance import plan_window
from portal.leases.models import LeaseRequest
from portal.leases.requests import RequestSpec, submit_request
from portal.leases.reservations import SeriesSpec, create_reservation
from portal.leases.states import OPEN_REQUESTS
from portal.leases.templates import save_template
from portal.leases.workshops import WorkshopSpec, create_workshop
from portal.teams.models import Team
from portal.teams.selectors import Rights

HOUR = 3600


@dataclass(frozen=True, slots=True)
class StoryRequest:
    """One request of the story."""

    username: str
    team: str
    flavor: str
    minutes: int
    name: str
    count: int = 1
    nodes: int = 1
    load_pattern: str = "steady"
    priority: str = "normal"
    opens: str = "device"


WISHES = (
    StoryRequest("bob", "perception", "h100-3g", 6 * 60, "Detector fine-tune, run 4", load_pattern="steady"),
    StoryRequest("bob", "perception", "h100-1g", 11, "Quick check of the data loader", load_pattern="bursty"),
    StoryRequest("bob", "segmentation", "a100-1g", 8 * 60, "Notebook", load_pattern="idle", opens="notebook"),
    StoryRequest("alice", "vision", "a100", 10 * 60, "Backbone pre-training", count=2, load_pattern="steady"),
    StoryRequest("charlie", "language", "h100", 12 * 60, "Tokeniser sweep", count=3, load_pattern="bursty"),
    StoryRequest("charlie", "language", "h100-2g", 5 * 60, "Evaluation", load_pattern="dummy_loop"),
    StoryRequest("charlie", "language", "l40s-12gb", 9 * 60, "Demo server", load_pattern="bursty"),
    StoryRequest("charlie", "speech", "l40s-12gb", 7 * 60, "Batch inference", load_pattern="steady"),
    StoryRequest("bob", "perception", "l40s-mps", 6 * 60, "Tracking demo", load_pattern="bursty"),
    StoryRequest(
        "charlie", "robotics", "dcu-32gb", 8 * 60, "Policy training", count=2, load_pattern="steady"
    ),
    StoryRequest("charlie", "robotics", "dcu-16gb", 4 * 60, "Simulator", load_pattern="steady"),
    # This one awaits approval.
    StoryRequest("bob", "segmentation", "a100", 72 * 60, "Full training, three days", count=4),
    StoryRequest(
        "bob", "segmentation", "a100-3g", 6 * 60, "Mask refinement", load_pattern="steady", opens="notebook"
    ),
    StoryRequest("alice", "vision", "a100", 5 * 60, "Training over two nodes", nodes=2),
    # These wait, each for another reason: quota, one node too full for the gang, whole boards cut into slices.
    StoryRequest("charlie", "grasping", "h100", 3 * 60, "Grasp network", opens="notebook"),
    StoryRequest("alice", "perception", "h100", 6 * 60, "Scaling run on a whole node", count=8),
    StoryRequest("charlie", "language", "a100", 4 * 60, "Long-context evaluation", count=4, priority="low"),
)


TEMPLATES = (
    ("PyTorch notebook on 20 GB", RequestSpec("h100-2g", 4 * HOUR, opens="notebook")),
    ("Terminal on a whole H100", RequestSpec("h100", 2 * HOUR, opens="terminal")),
)


def make_present(teams: dict[str, Team], people: dict[str, User], now: datetime) -> int:
    """Submit the story's requests unless some are open already. Returns how many were submitted."""
    if LeaseRequest.objects.filter(state__in=OPEN_REQUESTS, author__in=people.values()).exists():
        return 0
    for wish in WISHES:
        user = people[wish.username]
        submit_request(
            team=teams[wish.team],
            actor=user,
            rights=Rights(user),
            spec=RequestSpec(
                flavor=wish.flavor,
                duration_s=wish.minutes * 60,
                count=wish.count,
                nodes=wish.nodes,
                priority=wish.priority,
                name=wish.name,
                load_pattern=wish.load_pattern,
                opens=wish.opens,
            ),
            now=now,
        )
    _make_plans(teams, people, now)
    return len(WISHES)


def _make_plans(teams: dict[str, Team], people: dict[str, User], now: datetime) -> None:
    """Plan what the calendar shows, a course, a workshop and maintenance of a node, and keep templates."""
    bob, day = people["bob"], now.replace(minute=0, second=0, microsecond=0) + timedelta(days=1)
    create_reservation(
        team=teams["perception"],
        actor=bob,
        rights=Rights(bob),
        spec=SeriesSpec("h100-1g", 2 * HOUR, day.replace(hour=13), name="Weekly course"),
        now=now,
    )
    alice = people["alice"]
    create_workshop(
        team=teams["perception"],
        rights=Rights(alice),
        spec=WorkshopSpec("Tracking hands-on", "h100-1g", day.replace(hour=10), 2 * HOUR),
        people=AttendeeList(ready=(alice, bob)),
        now=now,
    )
    for name, spec in TEMPLATES:
        save_template(
            team=teams["perception"], actor=alice, rights=Rights(alice), name=name, spec=spec, now=now
        )
    nodes = list(Node.objects.filter(name="gpu-04"))
    if nodes:
        begin = day.replace(hour=6) + timedelta(days=2)
        plan_window(
            nodes=nodes,
            starts_at=begin,
            ends_at=begin + timedelta(hours=4),
            reason="A fan is exchanged",
            actor=people["operator"],
            now=now,
        )
