from __future__ import annotations

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from portal.common.ids import window_uid


class Mode(models.TextChoices):
    """How a device is shared."""

    EXCLUSIVE = "exclusive", _("Whole device")
    MIG = "mig", _("MIG slice")
    MPS = "mps", _("MPS share")
    MEMLIMIT = "memlimit", _("Memory-limited share")
    TIMESLICE = "timeslice", _("Time slice")


class DeviceModel(models.Model):
    """A kind of accelerator: what the price and the quota weight hang on.

    ``bandwidth_gbps`` is memory bandwidth in GB/s, ``compute_class`` a step of speed (docs/topology.md).
    """

    slug = models.SlugField(max_length=40, unique=True)
    name = models.CharField(max_length=80)
    vendor = models.CharField(max_length=20)
    memory_mib = models.PositiveIntegerField()
    sm_count = models.PositiveIntegerField(null=True, blank=True)
    grid = models.PositiveSmallIntegerField(default=1)
    weight_milli = models.PositiveIntegerField(default=1000)
    bandwidth_gbps = models.PositiveIntegerField(null=True, blank=True)
    compute_class = models.PositiveSmallIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.CheckConstraint(condition=Q(grid__gte=1, grid__lte=64), name="device_model_grid_sane"),
            models.CheckConstraint(condition=Q(weight_milli__gte=1), name="device_model_weighs_something"),
        ]

    def __str__(self) -> str:
        return self.name


class Profile(models.Model):
    """A name that some driver gives a MIG slice of a device model, as it was first told.

    ``size`` is the name under which the slice is asked for on every device of the model: its own, or that of the
    same slice from another driver. What one device's driver says now is in ``Device.profiles``.
    """

    device_model = models.ForeignKey(DeviceModel, on_delete=models.CASCADE, related_name="profiles")
    name = models.CharField(max_length=30)
    size = models.CharField(max_length=30)
    slices = models.PositiveSmallIntegerField()
    starts = ArrayField(models.PositiveSmallIntegerField())
    memory_mib = models.PositiveIntegerField()
    sm_count = models.PositiveIntegerField(null=True, blank=True)
    max_instances = models.PositiveSmallIntegerField()
    share_milli = models.PositiveSmallIntegerField()

    class Meta:
        ordering = ["slices", "name"]
        constraints = [
            models.UniqueConstraint(fields=["device_model", "name"], name="profile_once_per_model"),
            models.CheckConstraint(
                condition=Q(share_milli__gte=1, share_milli__lte=1000), name="profile_share_sane"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class Power(models.TextChoices):
    """Whether a node is ready for work or sleeps to save energy."""

    AWAKE = "awake", _("Awake")
    ASLEEP = "asleep", _("Asleep")


class PowerState(models.TextChoices):
    """What a node's agent says of its power; an empty value is unknown."""

    AWAKE = "awake", _("Awake")
    ASLEEP = "asleep", _("Asleep")
    UNSUPPORTED = "unsupported", _("Cannot sleep")


# Only agents that say their own power state are asked to change it.
SAYS_ITS_POWER = (PowerState.AWAKE, PowerState.ASLEEP)


class Node(models.Model):
    """A host with an agent. ``epoch`` fences frames, ``desired_revision`` rises with its desired state.

    ``cpu_milli`` and ``memory_mib`` are what leases may take of the host; None is unknown, no limit.
    ``power_desired`` is what the portal wants since ``power_changed_at``, ``power_state`` what the agent
    last said ("": unknown) and ``power_note`` why it could not. ``power_rule`` is an operator's word that goes
    before the policy: "awake" until ``power_rule_until``, "asleep" until the node is needed. ``wake_s`` is how
    long waking took last (None: unknown). ``drain_by`` is when the node must hold nothing any more (None: it is
    not being drained); a node that is drained is cordoned, ``drained_at`` is when its last lease was gone.
    ``rotate_asked_at`` is set while a new key is wanted. ``runtime`` is how its agent lets holders in (""
    unknown), ``features`` what its agent understands beside version 1 of the protocol. ``ahead_at`` is set while its
    agent has seen a later state than this database and carries leases that are not known here
    (``unknown_leases``): until an operator accepts that they end, the agent is told nothing. ``images_mib`` is what
    images of jobs take there (None: its agent does not say), ``image_limit_mib`` what they may take (None: all).
    """

    name = models.SlugField(max_length=60, unique=True)
    site = models.CharField(max_length=60, blank=True)
    rack = models.CharField(max_length=60, blank=True)
    cpu_milli = models.PositiveIntegerField(null=True, blank=True)
    memory_mib = models.PositiveIntegerField(null=True, blank=True)
    power_desired = models.CharField(max_length=8, choices=Power.choices, default=Power.AWAKE)
    power_state = models.CharField(max_length=12, blank=True, default="")
    power_changed_at = models.DateTimeField(null=True, blank=True)
    power_note = models.CharField(max_length=200, blank=True, default="")
    power_rule = models.CharField(max_length=8, choices=Power.choices, blank=True, default="")
    power_rule_until = models.DateTimeField(null=True, blank=True)
    wake_s = models.PositiveIntegerField(null=True, blank=True)
    idle_since = models.DateTimeField(null=True, blank=True)
    public_key = models.BinaryField(max_length=32, null=True)
    enrolled_at = models.DateTimeField(null=True, blank=True)
    key_changed_at = models.DateTimeField(null=True, blank=True)
    rotate_asked_at = models.DateTimeField(null=True, blank=True)
    runtime = models.CharField(max_length=40, blank=True, default="")
    epoch = models.PositiveBigIntegerField(default=0)
    boot_id = models.CharField(max_length=64, blank=True)
    desired_revision = models.PositiveBigIntegerField(default=0)
    observed_revision = models.PositiveBigIntegerField(default=0)
    last_seq = models.BigIntegerField(default=-1)
    agent_version = models.CharField(max_length=40, blank=True)
    driver = models.CharField(max_length=40, blank=True)
    driver_version = models.CharField(max_length=40, blank=True)
    is_cordoned = models.BooleanField(default=False)
    cordon_reason = models.CharField(max_length=200, blank=True)
    drain_by = models.DateTimeField(null=True, blank=True)
    drain_asked_at = models.DateTimeField(null=True, blank=True)
    drained_at = models.DateTimeField(null=True, blank=True)
    features = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    ahead_at = models.DateTimeField(null=True, blank=True)
    unknown_leases = ArrayField(models.CharField(max_length=64), default=list, blank=True)
    images_mib = models.PositiveBigIntegerField(null=True, blank=True)
    image_limit_mib = models.PositiveBigIntegerField(null=True, blank=True)
    last_seen_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        indexes = [models.Index(fields=["id"], name="node_draining", condition=~Q(drain_by=None))]
        constraints = [
            models.CheckConstraint(
                condition=Q(observed_revision__lte=F("desired_revision")),
                name="node_observes_what_was_desired",
            ),
            models.CheckConstraint(condition=Q(power_desired__in=Power.values), name="node_power_known"),
            models.CheckConstraint(
                condition=Q(drain_by=None) | Q(is_cordoned=True), name="node_drained_is_cordoned"
            ),
        ]

    def __str__(self) -> str:
        return self.name


class NodeImage(models.Model):
    """An image that jobs brought to a node, as its agent said last.

    ``holder`` is the account whose jobs find it there, "" for everybody's; ``digest`` is "" for one that has none.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="images", db_index=False)
    holder = models.CharField(max_length=150, blank=True)
    name = models.CharField(max_length=300)
    digest = models.CharField(max_length=200, blank=True)
    size_mib = models.PositiveIntegerField()

    class Meta:
        ordering = ["node", "name"]
        indexes = [models.Index(fields=["holder", "node"], name="image_by_holder")]
        constraints = [
            models.UniqueConstraint(
                fields=["node", "holder", "name", "digest"], name="image_once_for_a_holder"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} on {self.node_id}"


class NodeSleep(models.Model):
    """A time in which a node slept by its agent's word, and what that saved where energy was measured.

    ``idle_mw`` is what its devices drew together while the node idled awake before (thousandths of a watt),
    ``used_mj`` what they used asleep, ``saved_mj`` the difference to idling on; None is unknown.
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="sleeps")
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    why = models.CharField(max_length=20, blank=True)
    idle_mw = models.PositiveIntegerField(null=True, blank=True)
    used_mj = models.BigIntegerField(null=True, blank=True)
    saved_mj = models.BigIntegerField(null=True, blank=True)

    class Meta:
        ordering = ["-began_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["node"], condition=Q(ended_at=None), name="node_sleeps_once_at_a_time"
            ),
            models.CheckConstraint(
                condition=Q(ended_at=None) | Q(ended_at__gte=F("began_at")), name="sleep_ends_after_it_begins"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.began_at}"


class NodePresence(models.Model):
    """A time in which a node was heard again and again, without a gap that anybody noticed."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="presences", db_index=False)
    began_at = models.DateTimeField()
    ended_at = models.DateTimeField()

    class Meta:
        ordering = ["node", "began_at"]
        indexes = [models.Index(fields=["node", "-ended_at"], name="presence_by_node")]
        constraints = [
            models.CheckConstraint(
                condition=Q(ended_at__gte=F("began_at")), name="presence_ends_after_it_begins"
            ),
            models.UniqueConstraint(fields=["node", "began_at"], name="presence_begins_once"),
        ]

    def __str__(self) -> str:
        return f"{self.node_id} {self.began_at}"


class MaintenanceWindow(models.Model):
    """A time in which nodes are not available; leases end before it or are told so."""

    uid = models.CharField(max_length=24, default=window_uid)
    nodes = models.ManyToManyField(Node, related_name="windows")
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    reason = models.CharField(max_length=200)
    made_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )
    created_at = models.DateTimeField()
    cancelled_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["starts_at", "id"]
        indexes = [models.Index(fields=["ends_at"], name="window_to_come", condition=Q(cancelled_at=None))]
        constraints = [
            models.UniqueConstraint(fields=["uid"], name="window_uid_once"),
            models.CheckConstraint(
                condition=Q(ends_at__gt=F("starts_at")), name="window_ends_after_it_starts"
            ),
        ]

    def __str__(self) -> str:
        return self.uid


class IntakePause(models.Model):
    """A time in which nothing new starts on a device, on a node, or (neither is named) anywhere.

    ``cause`` is the alert for which Berth does so. It ends at ``until`` by itself, which is put off while the alert
    lasts, so that a watch that stopped keeps nobody out. ``ended_at`` is when it ended before, ``ended_by`` who did
    that (None: Berth, for the alert is over).
    """

    cause = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="+", db_index=False)
    device = models.ForeignKey(
        "Device", null=True, on_delete=models.CASCADE, related_name="+", db_index=False
    )
    reason = models.CharField(max_length=200)
    started_at = models.DateTimeField()
    until = models.DateTimeField()
    ended_at = models.DateTimeField(null=True)
    ended_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+", db_index=False
    )

    class Meta:
        ordering = ["started_at", "id"]
        indexes = [models.Index(fields=["until"], name="pause_in_force", condition=Q(ended_at=None))]
        constraints = [
            models.CheckConstraint(
                condition=Q(until__gt=F("started_at"))
                & (Q(ended_at=None) | Q(ended_at__gte=F("started_at"))),
                name="pause_runs_forward",
            ),
            models.CheckConstraint(condition=Q(node=None) | Q(device=None), name="pause_of_one_thing"),
            models.CheckConstraint(
                condition=Q(ended_by=None) | Q(ended_at__isnull=False), name="pause_ended_by_when_ended"
            ),
            models.CheckConstraint(condition=~Q(cause="") & ~Q(reason=""), name="pause_says_why"),
        ]

    def __str__(self) -> str:
        return f"{self.cause} until {self.until}"


class Health(models.TextChoices):
    """Whether a device may get new work."""

    OK = "ok", _("Healthy")
    DEGRADED = "degraded", _("Degraded")
    QUARANTINED = "quarantined", _("Quarantined")
    MISSING = "missing", _("Missing")


class Device(models.Model):
    """An accelerator of a node. ``modes`` is what the operator offers of what its agent said last (``offered``).

    ``refusals`` holds, per mode that the board could have and its node cannot offer, what is missing there.
    ``said`` is the model and memory that its node names now, ``accepted`` what of them an operator, or the policy,
    has accepted (None: nothing yet). Nothing is placed on a device that is not accepted as it is.
    ``profiles`` are the MIG sizes of this very device in its driver's words: name, slices, starts, memory_mib,
    sm_count, max_instances, share_milli, and the ``size`` of its model that each is (``portal.fleet.sizes``). Until a
    device is accepted, what it tells of them waits in ``said``.
    """

    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="devices")
    uuid = models.CharField(max_length=80, unique=True)
    index = models.PositiveSmallIntegerField()
    model = models.ForeignKey(DeviceModel, on_delete=models.PROTECT, related_name="devices")
    modes = ArrayField(models.CharField(max_length=12, choices=Mode.choices))
    offered = ArrayField(models.CharField(max_length=12), default=list, blank=True)
    pci_bus_id = models.CharField(max_length=32, blank=True)
    link_domain = models.CharField(max_length=40, blank=True)
    pcie_switch = models.CharField(max_length=40, blank=True)
    numa_node = models.SmallIntegerField(null=True, blank=True)
    max_clients = models.PositiveSmallIntegerField(default=48)
    health = models.CharField(max_length=12, choices=Health.choices, default=Health.OK)
    health_reason = models.CharField(max_length=200, blank=True)
    refusals = models.JSONField(default=dict, blank=True)
    said = models.JSONField(default=dict, blank=True)
    accepted = models.JSONField(null=True, blank=True)
    profiles = models.JSONField(default=list, blank=True)
    is_accepted = models.BooleanField(default=False)
    last_seen_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["node", "index"]
        constraints = [
            models.CheckConstraint(condition=Q(health__in=Health.values), name="device_health_known"),
            models.CheckConstraint(
                condition=Q(is_accepted=False) | Q(accepted__isnull=False),
                name="device_accepted_as_something",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.node.name}/{self.index}"


class Layout(models.Model):
    """A pinned set of MIG positions on one device: (profile, start) pairs; without one any legal position goes."""

    device = models.OneToOneField(Device, on_delete=models.CASCADE, related_name="layout")
    positions = models.JSONField()
    created_at = models.DateTimeField()

    def __str__(self) -> str:
        return ", ".join(f"{name}@{start}" for name, start in self.positions)


class Partition(models.Model):
    """A slice that the agent saw on a device at its last report; ``lease_uid`` empty is a foreign one."""

    device = models.ForeignKey(Device, on_delete=models.CASCADE, related_name="partitions")
    uuid = models.CharField(max_length=80)
    profile = models.CharField(max_length=30, blank=True)
    start = models.PositiveSmallIntegerField()
    size = models.PositiveSmallIntegerField()
    lease_uid = models.CharField(max_length=40, blank=True)
    seen_at = models.DateTimeField()

    class Meta:
        ordering = ["device", "start"]
        constraints = [
            models.UniqueConstraint(fields=["device", "start", "uuid"], name="partition_once_per_place"),
        ]

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


class HealthEvent(models.Model):
    """Something a device, or a node as a whole (no device), said about its health, until it is cleared.

    ``action`` is what has to be done about it ("": nothing known); ``cleared_by`` says who cleared it: "agent"
    or an operator's name, which may be the same word: ``is_cleared_by_hand`` tells them apart. ``cleared_boot`` is
    the boot of the node under which an operator did ("": unknown). ``unreported_at`` is since when its agent
    reports it no more (None: it still does, or an operator said it). ``starts`` is where the MIG slices begin that
    it hits, as the agent said last (None: it concerns the whole device, or that is not known). ``until`` is when
    Berth itself closes it, for a device that rests (None: the agent or an operator does).
    """

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="health_events")
    device = models.ForeignKey(
        Device, null=True, blank=True, on_delete=models.CASCADE, related_name="health_events"
    )
    code = models.CharField(max_length=40)
    severity = models.CharField(max_length=12)
    detail = models.CharField(max_length=300)
    action = models.CharField(max_length=20, blank=True, default="")
    starts = ArrayField(models.PositiveSmallIntegerField(), null=True, blank=True)
    cleared_by = models.CharField(max_length=150, blank=True, default="")
    is_cleared_by_hand = models.BooleanField(default=False)
    cleared_boot = models.CharField(max_length=64, blank=True, default="")
    at = models.DateTimeField()
    unreported_at = models.DateTimeField(null=True, blank=True)
    until = models.DateTimeField(null=True, blank=True)
    cleared_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-at"]
        indexes = [
            models.Index(fields=["node"], name="health_event_open", condition=Q(cleared_at=None)),
            models.Index(fields=["cleared_at"], name="health_event_over", condition=~Q(cleared_at=None)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["device", "code"], condition=Q(cleared_at=None), name="health_event_open_once"
            ),
            models.UniqueConstraint(
                fields=["node", "code"],
                condition=Q(cleared_at=None, device=None),
                name="node_health_event_open_once",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.code} on {self.device_id or self.node_id}"
