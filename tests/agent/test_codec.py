from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.protocol import forms, limits, messages, variables
from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.messages import MAX_FRAME_BYTES, Ack, Samples, SlotSample

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))
MANY = ",".join("0" * 5000)
SHOWN = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
FORMED = {
    forms.is_id: st.from_regex(r"[a-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True),
    forms.is_name: st.from_regex(r"([A-Za-z0-9][A-Za-z0-9_:+@=,-]{0,15}([./][a-z]{1,3})?)?", fullmatch=True),
    forms.is_device_node: st.from_regex(r"/dev/[a-z0-9]{1,9}(/[a-z0-9-]{1,9})?", fullmatch=True),
    forms.is_gateway: st.from_regex(r"(wss://[a-z]{1,9})?:[0-9]{1,5}(/[a-z]{1,9})?", fullmatch=True),
    forms.is_line: SHOWN,
    forms.is_any: st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=50),
    None: SHOWN,
}


def values_of(hint, owner, name):
    """Return a strategy for every value the codec must accept in a field."""
    where = f"{owner}.{name}"
    if get_origin(hint) is UnionType:
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return st.none() | values_of(inner, owner, name)
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0], owner, name), max_size=3).map(tuple)
    if get_origin(hint) is dict and where == limits.VARIABLES:
        return st.dictionaries(st.sampled_from(sorted(variables.NAMES)), SHOWN, max_size=3)
    if get_origin(hint) is dict:
        return st.dictionaries(FORMED[forms.is_name], SHOWN, max_size=3)
    if is_dataclass(hint):
        return objects(hint)
    if hint is str:
        return st.sampled_from(limits.WORDS[where]) if where in limits.WORDS else formed(owner, name)
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(*limits.bound(limits.WHOLE, owner, name, limits.WHOLE_DEFAULT))
    return st.floats(*limits.bound(limits.REAL, owner, name, limits.REAL_DEFAULT), allow_nan=False)


def formed(owner, name):
    return FORMED[limits.bound(forms.FORMS, owner, name, None)]


def objects(cls):
    hints = get_type_hints(cls)
    return st.builds(cls, **{f.name: values_of(hints[f.name], cls.__name__, f.name) for f in fields(cls)})


@settings(max_examples=150, deadline=None)
@given(st.one_of([objects(cls) for cls in get_args(messages.Message)]))
def test_every_message_comes_back_as_it_was(message):
    assert decode(encode(message)) == message


@settings(max_examples=200, deadline=None)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=5)
)
def test_any_value_in_any_field_is_read_or_refused(value):
    frame = json.dumps({"v": 1, "type": "ack", "seq": value})

    try:
        message = decode(frame)
    except ProtocolError:
        message = None

    assert message in (None, Ack(value))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_with_a_code(noise):
    with pytest.raises(ProtocolError):
        decode(noise)


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_frames_stay_readable_and_are_written_the_same(path):
    frame = path.read_text(encoding="utf-8")

    assert json.loads(encode(decode(frame))) == json.loads(frame)


def test_there_is_a_golden_frame_of_every_message():
    assert {path.stem.partition("-")[0] for path in GOLDEN} == {
        cls.__name__.lower() for cls in get_args(messages.Message)
    }


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "bad_json"),
        ("nothing", "bad_json"),
        ("[]", "not_an_object"),
        ("[" * 100_000, "too_deep"),
        ('{"a":' * 100_000, "too_deep"),
        ("9" * 5000, "bad_json"),
        (b"\xff\xfe", "bad_text"),
        ('{"type":"ack","seq":1}', "unknown_version"),
        ('{"v":2,"type":"ack","seq":1}', "unknown_version"),
        ('{"v":true,"type":"ack","seq":1}', "unknown_version"),
        ('{"v":1.0,"type":"ack","seq":1}', "unknown_version"),
        ('{"v":1,"seq":1}', "unknown_type"),
        ('{"v":1,"type":"nack","seq":1}', "unknown_type"),
        ('{"v":1,"type":["ack"],"seq":1}', "unknown_type"),
        ('{"v":1,"type":"ack"}', "missing_field"),
        ('{"v":1,"type":"ack","seq":1,"extra":1}', "unknown_field"),
        ('{"v":1,"type":"ack","seq":1,"seq":1}', "duplicate_key"),
        ('{"v":1,"type":"ack","seq":true}', "wrong_type"),
        ('{"v":1,"type":"ack","seq":"1"}', "wrong_type"),
        ('{"v":1,"type":"ack","seq":1.0}', "wrong_type"),
        ('{"v":1,"type":"ack","seq":null}', "wrong_type"),
        ('{"v":1,"type":"ack","seq":-1}', "out_of_range"),
        ('{"v":1,"type":"ack","seq":9007199254740992}', "out_of_range"),
        ('{"v":1,"type":"ack","seq":NaN}', "not_finite"),
        ('{"v":1,"type":"ack","seq":-Infinity}', "not_finite"),
        ('{"v":1,"type":"challenge","nonce":"a\\u0000b"}', "bad_text"),
        ('{"v":1,"type":"challenge","nonce":"\\ud800"}', "bad_text"),
        (json.dumps({"v": 1, "type": "challenge", "nonce": "n" * 65}), "too_long"),
        ('{"v":1,"type":"desired","node":"n","epoch":1,"revision":1,"leases":{}}', "wrong_type"),
        ('{"v":1,"type":"desired","node":"n","epoch":1,"revision":1,"leases":[1]}', "wrong_type"),
        (f'{{"v":1,"type":"desired","node":"n","epoch":1,"revision":1,"leases":[{MANY}]}}', "too_many"),
    ],
)  # fmt: skip
def test_bad_frames_are_refused_with_a_stable_code(frame, code):
    with pytest.raises(ProtocolError) as refused:
        decode(frame)

    assert refused.value.code == code


@pytest.mark.parametrize(
    ("value", "code"),
    [("1e999", "out_of_range"), ("101", "out_of_range"), ("true", "wrong_type"), ('"5"', "wrong_type")],
)  # fmt: skip
def test_measurements_must_be_figures_in_range(value, code):
    slot = f'{{"lease":"a","device":"d","start":0,"util_percent":{value},"memory_used_mib":1,"memory_mib":2}}'
    frame = f'{{"v":1,"type":"samples","epoch":1,"boot_id":"b","seq":1,"devices":[],"slots":[{slot}]}}'

    with pytest.raises(ProtocolError) as refused:
        decode(frame)

    assert refused.value.code == code


def test_unknown_measurements_stay_unknown():
    slot = SlotSample("a", "d", 0, None, None, 2)

    frame = encode(Samples(1, "b", 1, (), (slot,)))

    assert decode(frame).slots[0].util_percent is None


def test_words_outside_the_list_are_refused():
    frame = (GOLDEN[0].parent / "report.json").read_text(encoding="utf-8").replace('"ready"', '"done"')

    with pytest.raises(ProtocolError) as refused:
        decode(frame)

    assert refused.value.code == "unknown_word"


def test_frame_over_the_limit_is_refused_before_it_is_parsed():
    with pytest.raises(ProtocolError) as refused:
        decode("x" * (MAX_FRAME_BYTES + 1))

    assert refused.value.code == "too_large"


def desired(**lease):
    body = {
        "lease": "a",
        "generation": 1,
        "team": "t",
        "user": "u",
        "remaining_s": 1,
        "grace_s": 1,
        "slots": [],
    }
    frame = {"v": 1, "type": "desired", "node": "n", "epoch": 1, "revision": 1, "leases": [{**body, **lease}]}
    return json.dumps(frame)


def report(lease=(), **access):
    slot = {"device": "GPU-1", "start": 0, "partition": "MIG-1", **access}
    row = {"lease": "a", "generation": 1, "phase": "ready", "access": [slot], **dict(lease)}
    frame = {"v": 1, "type": "report", "epoch": 1, "boot_id": "b", "seq": 1, "revision": 1, "leases": [row]}
    return json.dumps({**frame, "partitions": []})


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a b", "a\nExecStopPost=+/bin/sh", "../x", "-x", "a/b", "ä", "x" * 65, "a%n", "a\\x2d"],
)
def test_ids_that_could_be_anything_else_are_refused_in_both_directions(name):
    for frame in (desired(lease=name), report(lease={"lease": name})):
        with pytest.raises(ProtocolError):
            decode(frame)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "/tmp/x.so"),
        ("PATH", "/tmp"),
        ("PYTHONPATH", "/tmp"),
        ("BASH_ENV", "/tmp/x"),
        ("CUDA_INJECTION64_PATH", "/tmp/x.so"),
        ("BERTH_URL", "http://elsewhere"),
        ("BERTH_TOKEN", "x"),
        ("CUDA_VISIBLE_DEVICES;id", "0"),
        ("cuda_visible_devices", "0"),
        ("CUDA_VISIBLE_DEVICES_٢", "0"),
        ("CUDA_VISIBLE_DEVICES", "0\ntouch PWNED"),
        ("CUDA_VISIBLE_DEVICES", "0\x1b]0;x\x07"),
        ("CUDA_VISIBLE_DEVICES", "0" * 4097),
        ("CUDA_VISIBLE_DEVICES", 0),
    ],
)
def test_variables_that_no_node_may_set_are_refused(name, value):
    with pytest.raises(ProtocolError) as refused:
        decode(report(env={name: value}))

    assert refused.value.code == "bad_variable"


@pytest.mark.parametrize("node", ["/etc/shadow", "/dev/../etc/shadow", "/dev/a b", "/dev/a\nx", "dev/a", ""])
def test_only_device_nodes_are_told_as_device_nodes(node):
    with pytest.raises(ProtocolError):
        decode(report(nodes=[node]))


def test_what_is_only_shown_is_blanked_and_costs_no_connection():
    frame = report(lease={"phase": "failed", "code": "mps", "detail": "first\n\x1b[2Jsecond\u202e"})

    assert decode(frame).leases[0].detail == "first  [2Jsecond "


def test_every_text_that_names_something_has_a_form():
    """Names of people, of things for people and of programs are shown only."""
    shown = {
        "ClusterUsage.why", "DeviceFact.link_domain", "DeviceFact.model", "DeviceFact.pcie_switch",
        "DeviceFact.serial",
        "DeviceSample.source", "HealthFact.detail", "Hello.agent_version", "Hello.driver", "Hello.driver_version",
        "Hello.rack", "Hello.site", "JobReport.word", "LeaseReport.detail", "ProcessSample.name", "Refused.detail",
        "Report.power_note", "SlotSample.source",
    }  # fmt: skip
    classes = [cls for cls in vars(messages).values() if is_dataclass(cls)]
    texts = {(c.__name__, f.name) for c in classes for f in fields(c) if get_type_hints(c)[f.name] is str}

    bare = {
        f"{owner}.{name}" for owner, name in texts if limits.bound(forms.FORMS, owner, name, None) is None
    }

    assert bare - set(limits.WORDS) == shown


def test_figures_that_are_not_finite_are_never_sent():
    with pytest.raises(ValueError, match="JSON"):
        encode(Samples(1, "b", 1, (), (SlotSample("a", "d", 0, float("nan"), None, 2),)))


def test_number_of_a_job_that_no_column_can_keep_is_refused():
    said = {"phase": "running", "ordinal": 2**31 - 1}
    assert decode(report(lease={"job": said})).leases[0].job.ordinal == 2**31 - 1

    with pytest.raises(ProtocolError):
        decode(report(lease={"job": {**said, "ordinal": 2**31}}))
