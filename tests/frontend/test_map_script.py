"""The map's script in Node with a page of a few lines around it: when it asks for a new page."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from tests.frontend.test_scripts import NODE, SCRIPTS, needs_node

PAGE = """
class Piece extends EventTarget {
  dataset = {}; children = []; style = {};
  classList = { toggle() {} };
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  setAttribute() {}
  remove() {}
  querySelector() { return null; }
  querySelectorAll() { return []; }
}
const drawn = new Piece();
const later = [];
globalThis.window = globalThis;
globalThis.IntersectionObserver = class { observe() {} disconnect() {} };
globalThis.setTimeout = (work, wait) => later.push({ work, wait });
globalThis.clearTimeout = (number) => { if (number) later[number - 1].work = () => {}; };
globalThis.document = Object.assign(new Piece(), {
  documentElement: { lang: "en" }, body: new Piece(),
  createElement: () => new Piece(), createElementNS: () => new Piece(), getElementById: () => drawn,
});
function page(state) {
  drawn.textContent = JSON.stringify({ nodes: [{ name: "gpu-03", state, devices: [] }] });
  document.dispatchEvent(new Event("htmx:after:swap"));
}
const map = new Piece();
let asked = 0;
map.addEventListener("map:changed", () => { asked += 1; });
const say = (state) => map.dispatchEvent(new CustomEvent("live:frame", {
  detail: { data: { nodes: { "gpu-03": { state, devices: {} } } } },
}));
const wait = () => { const one = later.at(-1); one.work(); return one.wait; };
const seen = [];
"""


def play(story: str) -> Any:
    """What ``seen`` holds after a story on a page whose map is mounted."""
    module = json.dumps((SCRIPTS / "map.js").as_uri())
    code = f"{PAGE}page('online'); const {{ mount }} = await import({module});"
    code += f"mount(map, new AbortController().signal);{story};console.log(JSON.stringify(seen));"
    return _run(code)


def _run(code: str) -> Any:
    done = subprocess.run(
        [str(NODE), "--experimental-default-type=module", "--input-type=module", "-e", code],
        check=True, capture_output=True, text=True, timeout=60, env={"PATH": ""},
    )  # fmt: skip
    return json.loads(done.stdout)


@needs_node
def test_silence_in_the_very_first_frame_is_news_to_a_page_that_says_online():
    asked = play("say('stale'); seen.push(asked)")

    assert asked == [1]


@needs_node
def test_page_that_answers_too_early_is_asked_again_ever_more_slowly_until_it_agrees():
    seen = play(
        "say('online'); say('stale'); page('online'); const first = asked;"
        "seen.push(first >= 1, wait(), asked - first, wait(), asked - first);"
        "page('stale'); seen.push(wait(), asked - first);"
        "say('stale'); seen.push(asked - first)"
    )

    assert seen == [True, 2000, 1, 4000, 2, 8000, 2, 2]


@needs_node
def test_page_and_frames_that_agree_are_left_alone():
    assert play("say('online'); say('online'); seen.push(asked)") == [0]


@needs_node
def test_cordoned_node_that_speaks_is_no_disagreement():
    assert play("page('draining'); say('online'); seen.push(asked)") == [0]


@needs_node
def test_last_frame_is_no_news_once_the_connection_is_lost():
    lost = "document.dispatchEvent(new CustomEvent('live:state', { detail: { state: 'reconnecting' } }));"

    assert play(f"say('stale'); {lost} wait(); seen.push(asked)") == [1]


@needs_node
def test_socket_opens_only_when_the_map_is_there_to_hear_its_first_word():
    """A silent node sends nothing after the snapshot, so a map that missed it would stay as it was drawn."""
    main = json.dumps((SCRIPTS / "main.js").as_uri())
    code = f"""{PAGE}
    map.addEventListener = (name) => {{ if (name === "live:frame") seen.push("map listens"); }};
    globalThis.WebSocket = class extends Piece {{ constructor() {{ super(); seen.push("socket opens"); }} }};
    globalThis.location = {{ href: "http://berth.test/", protocol: "http:" }};
    globalThis.matchMedia = () => new Piece();
    globalThis.setInterval = globalThis.addEventListener = () => {{}};
    document.body.dataset.live = "/ws/live/";
    document.querySelectorAll = (selector) => (selector === "[data-map]" ? [map] : []);
    document.querySelector = () => null;
    page("online");
    await import({main});
    while (seen.length < 2) await new Promise((done) => setImmediate(done));
    console.log(JSON.stringify(seen));"""

    assert _run(code) == ["map listens", "socket opens"]
