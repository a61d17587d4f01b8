"""Many byte streams on one socket, without a socket."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodeagent.protocol.streams import (
    LARGE_PIECE,
    MAX_FRAME_BYTES,
    MOST_PIECE,
    MOST_WAITING_WORDS,
    WINDOW,
    Kind,
    StreamConnection,
    StreamProtocolError,
)


def frame(kind: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack("!BI", kind, stream) + body


def deliver(sender: StreamConnection, receiver: StreamConnection) -> list:
    return [event for each in sender.take_frames() if (event := receiver.receive(each)) is not None]


def opened(window: int = WINDOW) -> tuple[StreamConnection, StreamConnection, int]:
    portal, agent = StreamConnection(is_portal=True), StreamConnection(is_portal=False)
    stream = portal.open({"kind": "pty"}, window=window)
    deliver(portal, agent)
    agent.accept(stream, {})
    deliver(agent, portal)
    return portal, agent, stream


def test_wish_and_answer_reach_the_other_end():
    portal, agent = StreamConnection(is_portal=True), StreamConnection(is_portal=False)
    stream = portal.open({"kind": "pty", "rows": 24})
    (asked,) = deliver(portal, agent)
    agent.accept(stream, {"terminal": "t1"})
    (answered,) = deliver(agent, portal)

    assert (stream, asked.kind, asked.body) == (1, Kind.OPEN, {"kind": "pty", "rows": 24})
    assert (answered.kind, answered.body) == (Kind.OPENED, {"terminal": "t1"})


def test_nothing_is_sent_before_the_answer():
    portal = StreamConnection(is_portal=True)
    stream = portal.open({})

    assert portal.send(stream, b"early") == 0


def test_flood_stops_at_the_window_and_goes_on_once_half_was_drawn():
    portal, agent, stream = opened()

    taken = agent.send(stream, bytes(10 * WINDOW))
    pieces = [event.data for event in deliver(agent, portal)]
    portal.consumed(stream, WINDOW // 2 - 1)
    before = deliver(portal, agent)
    portal.consumed(stream, 1)
    (window,) = deliver(portal, agent)

    assert taken == WINDOW == sum(map(len, pieces))
    assert {len(piece) for piece in pieces} == {MOST_PIECE}
    assert before == []
    assert window.kind == Kind.WINDOW
    assert agent.credit(stream) == WINDOW // 2


def test_pieces_are_as_large_as_the_other_end_takes():
    portal = StreamConnection(is_portal=True)
    agent = StreamConnection(is_portal=False, most_piece=LARGE_PIECE)
    stream = portal.open({})
    deliver(portal, agent)
    agent.accept(stream, {})
    deliver(agent, portal)

    agent.send(stream, bytes(LARGE_PIECE + 1))

    assert [len(event.data) for event in deliver(agent, portal)] == [LARGE_PIECE, 1]


def test_smaller_window_holds_the_answering_end_only():
    portal, agent, stream = opened(window=1000)

    assert (agent.credit(stream), portal.credit(stream)) == (1000, WINDOW)


def test_half_close_leaves_the_other_direction_open():
    portal, agent, stream = opened()
    portal.end(stream)
    (end,) = deliver(portal, agent)

    agent.send(stream, b"still here")
    agent.end(stream)
    data, last = deliver(agent, portal)

    assert (end.kind, data.data, last.kind) == (Kind.EOF, b"still here", Kind.EOF)
    assert portal.streams == agent.streams == frozenset()


def test_reset_ends_both_directions_and_frames_that_crossed_mean_nothing():
    portal, agent, stream = opened()
    agent.send(stream, b"on its way")
    portal.reset(stream, "lease_over", "the lease is over")
    portal.reset(stream, "again")

    crossed = deliver(agent, portal)
    (reset,) = deliver(portal, agent)

    assert crossed == []
    assert reset.body == {"code": "lease_over", "detail": "the lease is over"}
    assert agent.send(stream, b"late") == 0


def test_one_stream_too_many_is_reset_and_the_others_live():
    portal = StreamConnection(is_portal=True)
    agent = StreamConnection(is_portal=False, most_streams=2)
    for _ in range(3):
        portal.open({})
    asked = deliver(portal, agent)
    (reset,) = deliver(agent, portal)

    assert [event.stream for event in asked] == [1, 3]
    assert (reset.kind, reset.stream, reset.body["code"]) == (Kind.RESET, 5, "too_many_streams")


def test_who_asks_on_and_on_without_reading_is_let_go():
    agent = StreamConnection(is_portal=False, most_streams=0)

    for number in range(MOST_WAITING_WORDS):
        agent.receive(frame(Kind.OPEN, 2 * number + 1, b"{}"))
    with pytest.raises(StreamProtocolError) as refused:
        agent.receive(frame(Kind.OPEN, 2 * MOST_WAITING_WORDS + 1, b"{}"))

    assert refused.value.code == "not_reading"


HOSTILE = {
    "empty": b"",
    "headless": b"\x03\x00",
    "too long": bytes(MAX_FRAME_BYTES + 1),
    "unknown kind": frame(99, 1),
    "kind zero": frame(0, 1),
    "own number": frame(Kind.OPEN, 2, b"{}"),
    "number zero": frame(Kind.OPEN, 0, b"{}"),
    "number again": frame(Kind.OPEN, 1, b"{}"),
    "wish is no object": frame(Kind.OPEN, 3, b"[]"),
    "wish is no JSON": frame(Kind.OPEN, 3, b"{"),
    "wish is deep": frame(Kind.OPEN, 3, b"[" * 4000),
    "wish is long": frame(Kind.OPEN, 3, json.dumps({"a": "b" * 5000}).encode()),
    "window too wide": frame(Kind.OPEN, 3, json.dumps({"window": WINDOW + 1}).encode()),
    "window is true": frame(Kind.OPEN, 3, b'{"window": true}'),
    "answer nobody asked for": frame(Kind.OPENED, 1, b"{}"),
    "stream to come": frame(Kind.DATA, 5, b"x"),
    "own stream to come": frame(Kind.DATA, 2, b"x"),
    "stream zero": frame(Kind.EOF, 0),
    "room that never was": frame(Kind.WINDOW, 1, struct.pack("!I", 1)),
    "no room": frame(Kind.WINDOW, 1, struct.pack("!I", 0)),
    "short window": frame(Kind.WINDOW, 1, b"\x01"),
    "end with a body": frame(Kind.EOF, 1, b"x"),
    "word is no object": frame(Kind.CTL, 1, b"7"),
    "reset is no object": frame(Kind.RESET, 1, b"now"),
}


@pytest.mark.parametrize("hostile", HOSTILE.values(), ids=HOSTILE.keys())
def test_frame_that_breaks_the_rules_is_refused(hostile):
    _, agent, _ = opened()

    with pytest.raises(StreamProtocolError):
        agent.receive(hostile)


def test_more_than_the_window_is_refused():
    _, agent, stream = opened()
    for _ in range(WINDOW // MOST_PIECE):
        agent.receive(frame(Kind.DATA, stream, bytes(MOST_PIECE)))

    with pytest.raises(StreamProtocolError) as refused:
        agent.receive(frame(Kind.DATA, stream, b"x"))

    assert refused.value.code == "over_window"


def test_bytes_after_the_end_are_refused():
    _, agent, stream = opened()
    agent.receive(frame(Kind.EOF, stream))

    with pytest.raises(StreamProtocolError):
        agent.receive(frame(Kind.DATA, stream, b"x"))


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_any_bytes_are_taken_in_or_refused_and_nothing_else_happens(frames):
    agent = opened()[1]
    try:
        for each in frames:
            agent.receive(each)
    except StreamProtocolError:
        pass


STEP = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3 * MOST_PIECE)),
    st.tuples(st.just("draw"), st.integers(0, 1), st.sampled_from([1, 1, 7, 4096, WINDOW])),
    st.tuples(st.just("carry"), st.integers(0, 1), st.just(0)),
    st.tuples(st.just("end"), st.integers(0, 1), st.just(0)),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), STEP), max_size=120), st.integers(1, WINDOW))
def test_what_is_sent_arrives_whole_and_in_order_and_never_beyond_the_window(steps, window):
    ends = StreamConnection(is_portal=True), StreamConnection(is_portal=False)
    streams = [ends[0].open({}, window=window) for _ in range(3)]
    deliver(*ends)
    for stream in streams:
        ends[1].accept(stream, {})
    deliver(ends[1], ends[0])
    sent = {(side, stream): bytearray() for side in (0, 1) for stream in streams}
    got = {key: bytearray() for key in sent}
    held = dict.fromkeys(sent, 0)
    over: set[tuple[int, int]] = set()

    def carry(side: int) -> None:
        for event in deliver(ends[side], ends[1 - side]):
            if event.kind == Kind.DATA:
                got[side, event.stream] += event.data
                held[side, event.stream] += len(event.data)
                assert held[side, event.stream] <= (window if side == 1 else WINDOW)

    for which, (what, side, figure) in steps:
        stream, key = streams[which], (side, streams[which])
        if what == "send" and key not in over:
            data = bytes((len(sent[key]) + i) % 251 for i in range(figure))
            sent[key] += data[: ends[side].send(stream, data)]
        elif what == "draw":
            drawn = min(figure, held[key])
            held[key] -= drawn
            ends[1 - side].consumed(stream, drawn)
        elif what == "carry":
            carry(side)
        elif what == "end":
            over.add(key)
            ends[side].end(stream)
    carry(0)
    carry(1)

    assert got == sent
