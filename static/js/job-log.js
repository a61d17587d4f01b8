// What a job prints: fetched piece by piece, as soon as the live socket says that there is more, and now and then without
// it; drawn as text alone. Of escape sequences colours become classes; every
// other one is dropped, and so is what a carriage return has overwritten.
//
//   <section data-job-log data-log-url="…" data-offset="0" data-line="1"> … <div class="job-log"></div></section>

const FIRST_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 2000;
const MOST_LINES = 5000;
const ESCAPE = /\x1b\[([0-?]*)[ -/]*([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[^[\]]?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;
const OPEN = ["waiting", "starting", "running"];

/** Return what of a line is seen at last: each carriage return begins it anew. */
export function folded(line) {
  const text = line.replace(/\r+$/, "");
  return text.slice(text.lastIndexOf("\r") + 1);
}

/** Return the classes in force after a colour sequence, from those before it. */
export function styled(classes, codes) {
  let now = new Set(classes);
  for (const code of (codes || "0").split(";").map(Number)) {
    const drop = (test) => { now = new Set([...now].filter((one) => !test(one))); };
    if (code === 0) now.clear();
    else if ([1, 3, 4].includes(code)) now.add(code);
    else if ([22, 23, 24].includes(code)) now.delete(code === 22 ? 1 : code - 20);
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97)) { drop((one) => one >= 30); now.add(code); }
    else if (code === 39) drop((one) => one >= 30);
    else if (code === 38 || code === 48) break; // colours beyond the sixteen are not shown
  }
  return [...now];
}

/** Return a line as parts of text with their classes, and the classes in force at its end. */
export function parts(line, classes = []) {
  const found = [];
  let at = 0;
  const put = (text) => { if (text) found.push([text, classes]); };
  for (const match of line.matchAll(ESCAPE)) {
    put(line.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] === "m") classes = styled(classes, match[1]);
  }
  put(line.slice(at));
  return { found, classes };
}

/** Wire one log. */
export function mount(root, signal) {
  const box = root.querySelector(".job-log");
  const search = root.querySelector("[data-log-search]");
  const follow = root.querySelector("[data-log-follow]");
  let offset = Number(root.dataset.offset), line = Number(root.dataset.line), attempt = 0;
  let rest = "", open = null, classes = [], pause = FIRST_PAUSE_MS;
  let timer = 0, stored = 0, isLooking = false, isMore = false, isTold = false, isOver = false;

  function draw(text) {
    const row = open || document.createElement("p");
    if (!open) {
      row.id = `L${line}`;
      const link = document.createElement("a");
      link.href = `#L${line}`;
      link.textContent = line;
      row.append(link, document.createElement("span"));
      box.append(row);
    }
    const drawn = parts(folded(text), classes);
    row.lastChild.replaceChildren(...drawn.found.map(([said, styles]) => {
      if (!styles.length) return document.createTextNode(said);
      const part = document.createElement("b");
      part.className = styles.map((one) => `a${one}`).join(" ");
      part.textContent = said;
      return part;
    }));
    return { row, classes: drawn.classes };
  }

  function add(text) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const each of lines) {
      ({ classes } = draw(each));
      open = null;
      line += 1;
    }
    if (rest) open = draw(rest.slice(-8192)).row;
    while (box.childElementCount > MOST_LINES) box.firstChild.remove();
    if (follow.checked) box.scrollTop = box.scrollHeight;
    if (search.value) mark();
  }

  function mark() {
    const wanted = search.value.toLowerCase();
    let first = null;
    for (const row of box.children) {
      const is = wanted !== "" && row.lastChild.textContent.toLowerCase().includes(wanted);
      row.classList.toggle("is-found", is);
      if (is && !first) first = row;
    }
    return first;
  }

  async function look() {
    clearTimeout(timer);
    if (signal.aborted || isOver) return;
    isLooking = true;
    isMore = false;
    let page = null;
    try {
      const answer = await fetch(`${root.dataset.logUrl}?attempt=${attempt}&offset=${offset}`, { signal });
      if (answer.status === 404 || answer.status === 401) { isOver = true; return; }
      page = answer.ok && !answer.redirected ? await answer.json() : null;
    } catch { /* tried again below */ } finally { isLooking = false; }
    if (page) {
      const grew = page.next > offset;
      if (page.text) add(page.text);
      offset = page.next;
      if (page.is_done && !grew && !OPEN.includes(page.state)) { isOver = true; return; }
      pause = isTold ? LONGEST_PAUSE_MS : grew ? FIRST_PAUSE_MS : Math.min(LONGEST_PAUSE_MS, pause * 1.2);
      if (grew && (offset < stored || page.text.length > 100000)) pause = 0;
    }
    timer = setTimeout(look, document.hidden ? LONGEST_PAUSE_MS : isMore ? 0 : pause);
  }

  // A frame says that more was stored; a snapshot, that from here on it will be said.
  root.addEventListener("live:frame", (event) => {
    stored = event.detail.data.size ?? 0;
    isTold = true;
    isMore = true;
    if (!isLooking && !document.hidden) look();
  }, { signal });
  document.addEventListener("live:state", (event) => {
    if (event.detail.state !== "open") { isTold = false; pause = FIRST_PAUSE_MS; }
  }, { signal });

  search.addEventListener("input", () => {
    const first = mark();
    if (first) { follow.checked = false; first.scrollIntoView({ block: "nearest" }); }
  }, { signal });
  box.addEventListener("scroll", () => {
    follow.checked = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  }, { signal });
  look();
}
