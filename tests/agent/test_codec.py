from __future__ import annotations

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.protocol import limits, messages
from nodeagent.protocol.codec import ProtocolError, decode, encode
from nodeagent.protocol.messages import MAX_FRAME_BYTES, Ack, Samples, SlotSample

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))
MANY = ",".join("0" * 5000)
TEXT = st.text(st.characters(exclude_characters="\x00", exclude_categories=("Cs",)), max_size=20)


def values_of(hint, owner, name):
    """Return a strategy for every value the codec must accept in a field."""
    where = f"{owner}.{name}"
    if get_origin(hint) is UnionType:
        (inner,) = [arg for arg in get_args(hint) if arg is not type(None)]
        return st.none() | values_of(inner, owner, name)
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0], owner, name), max_size=3).map(tuple)
    if get_origin(hint) is dict:
        return st.dictionaries(TEXT, TEXT, max_size=3)
    if is_dataclass(hint):
        return objects(hint)
    if hint is str:
        return st.sampled_from(limits.WORDS[where]) if where in limits.WORDS else TEXT
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(*limits.bound(limits.WHOLE, owner, name, limits.WHOLE_DEFAULT))
    return st.floats(*limits.bound(limits.REAL, owner, name, limits.REAL_DEFAULT), allow_nan=False)


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


def test_figures_that_are_not_finite_are_never_sent():
    with pytest.raises(ValueError, match="JSON"):
        encode(Samples(1, "b", 1, (), (SlotSample("a", "d", 0, float("nan"), None, 2),)))
