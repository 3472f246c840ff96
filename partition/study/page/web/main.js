/* SPDX-License-Identifier: Apache-2.0 */
/* Hands and keys; when is drawn. */

const canvas = document.getElementById("time"), memory = document.getElementById("memory");
const statusLine = document.getElementById("status");
const hasMemory = tracks.some((t) => t.ranks.some((l) => l.kept.peak + l.fixed_bytes > 0));
const REST_MS = 90, FEW_RANKS = 16;
let isAsked = false, rest = 0;

function drawBelow() {
  const box = memory.getBoundingClientRect();
  if (hasMemory && box.top < window.innerHeight && box.bottom > 0)
    drawMemory(memory);
}

/* Once a frame, whatever asks for it. Memory of many ranks follows when the hand rests. */
function draw() {
  if (isAsked)
    return;
  isAsked = true;
  requestAnimationFrame(() => {
    isAsked = false;
    drawTime(canvas);
    clearTimeout(rest);
    if (tracks.every((t) => t.ranks.length <= FEW_RANKS))
      drawBelow();
    else
      rest = setTimeout(() => requestAnimationFrame(drawBelow), REST_MS);
  });
}

function say(text) {
  if (statusLine.textContent !== text)
    statusLine.textContent = text;
}

function setCursor(lane, span, follows) {
  view.cursor = { lane, span };
  say(span < 0 ? "rank " + lane.rank + " · nothing here" : nameOf(lane, span));
  if (follows)
    showCursor();
  draw();
}

/* ---- pointer ---- */

const pointers = new Map();
let pinch = 0;

function at(event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function point(event) {
  const { x, y } = at(event), row = rowAt(y);
  if (row !== null && x >= left() && x <= left() + plot())
    setCursor(row.lane, spanAt(row.lane, toTime(x)), false);
}

canvas.addEventListener("wheel", (event) => {
  const { x } = at(event), sideways = event.shiftKey ? event.deltaY : event.deltaX;
  if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
    pan(sideways / plot());
  } else {
    if (isWhole() && event.deltaY > 0)
      return; /* nothing to zoom out of: the page scrolls */
    zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 400))), toTime(Math.max(left(), x)));
  }
  event.preventDefault();
  draw();
}, { passive: false });

canvas.addEventListener("pointerdown", (event) => {
  pointers.set(event.pointerId, at(event));
  canvas.setPointerCapture(event.pointerId);
  canvas.classList.add("drags");
  pinch = 0;
});

canvas.addEventListener("pointermove", (event) => {
  const old = pointers.get(event.pointerId), now = at(event);
  if (old === undefined) {
    point(event);
    return;
  }
  pointers.set(event.pointerId, now);
  if (pointers.size === 1 && old.y < OVERVIEW) {
    const middle = ((now.x - left()) / plot()) * END, half = (view.last - view.first) / 2;
    clampView(middle - half, middle + half);
  } else if (pointers.size === 1) {
    pan((old.x - now.x) / plot());
  } else if (pointers.size === 2) {
    const [a, b] = [...pointers.values()], distance = Math.max(8, Math.abs(a.x - b.x));
    if (pinch > 0)
      zoom(pinch / distance, toTime((a.x + b.x) / 2));
    pinch = distance;
  }
  draw();
});

for (const name of ["pointerup", "pointercancel"]) {
  canvas.addEventListener(name, (event) => {
    pointers.delete(event.pointerId);
    pinch = 0;
    if (pointers.size === 0)
      canvas.classList.remove("drags");
    if (name === "pointerup")
      point(event);
  });
}

canvas.addEventListener("dblclick", (event) => {
  zoom(0.4, toTime(at(event).x));
  draw();
});

/* ---- keys ---- */

/* The lane of the cursor, or the first; the span of it in the middle of what is seen. */
function moveLane(by) {
  const rows = view.rows, row = view.cursor === null ? -1 : rows.findIndex((r) => r.lane === view.cursor.lane);
  const next = rows[Math.max(0, Math.min(rows.length - 1, row < 0 ? 0 : row + by))];
  const old = view.cursor !== null && view.cursor.span >= 0 ? view.cursor.lane.spans.start[view.cursor.span] : (view.first + view.last) / 2;
  if (next !== undefined)
    setCursor(next.lane, spanAt(next.lane, old), true);
}

function moveSpan(by) {
  if (view.cursor === null)
    return moveLane(0);
  const { lane, span } = view.cursor;
  const from = span >= 0 ? span + by : firstAfter(lane, view.first);
  setCursor(lane, Math.max(0, Math.min(lane.spans.n - 1, from)), true);
}

function zoomToSpan() {
  if (view.cursor === null || view.cursor.span < 0)
    return;
  const { lane, span } = view.cursor, length = Math.max(END * 1e-6, lane.spans.end[span] - lane.spans.start[span]);
  const middle = (lane.spans.start[span] + lane.spans.end[span]) / 2;
  clampView(middle - 5 * length, middle + 5 * length);
}

const middle = () => (view.cursor !== null && view.cursor.span >= 0 ? view.cursor.lane.spans.start[view.cursor.span] : undefined);
const seen = (t) => (t !== undefined && t >= view.first && t <= view.last ? t : undefined);
const keys = {
  "+": () => zoom(0.7, seen(middle())), "=": () => zoom(0.7, seen(middle())), "-": () => zoom(1 / 0.7, seen(middle())), "_": () => zoom(1 / 0.7, seen(middle())),
  "ArrowLeft": () => pan(-0.1), "ArrowRight": () => pan(0.1), "PageUp": () => pan(-0.9), "PageDown": () => pan(0.9),
  "ArrowUp": () => moveLane(-1), "ArrowDown": () => moveLane(1), ",": () => moveSpan(-1), ".": () => moveSpan(1),
  "Home": () => clampView(0, view.last - view.first), "End": () => clampView(END - (view.last - view.first), END),
  "Enter": zoomToSpan, "0": () => clampView(0, END), "Escape": () => clampView(0, END),
};

canvas.addEventListener("keydown", (event) => {
  const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
  if (act === undefined)
    return;
  act();
  event.preventDefault();
  draw();
});

/* ---- buttons ---- */

function press(id, act) {
  document.getElementById(id).addEventListener("click", () => {
    act();
    draw();
  });
}
press("in", () => zoom(0.6, seen(middle())));
press("out", () => zoom(1 / 0.6, seen(middle())));
press("fit", () => clampView(0, END));

const theme = document.getElementById("theme"), darkness = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (darkness.matches ? "dark" : "light")) === "dark";

function dress() {
  theme.textContent = isDark() ? "Light" : "Dark";
  theme.setAttribute("aria-pressed", String(isDark()));
  theme.setAttribute("aria-label", isDark() ? "Light colours" : "Dark colours");
  readColours();
  draw();
}
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  dress();
});
darkness.addEventListener("change", dress);

const links = document.getElementById("links"), hasLinks = tracks.some((t) => t.links.length > 0);
view.showsLinks = hasLinks && tracks.every((t) => t.ranks.length <= 16);
links.checked = view.showsLinks;
links.parentElement.hidden = !hasLinks;
links.addEventListener("change", () => {
  view.showsLinks = links.checked;
  draw();
});

function setOwnScales(own) {
  setScales(own);
  view.own = own;
  showCursor();
}
for (const [id, act] of [["by-rank", (on) => { view.byRank = on; }], ["one-scale", (on) => setOwnScales(!on)]]) {
  const box = document.getElementById(id);
  box.parentElement.hidden = tracks.length < 2;
  box.addEventListener("change", () => {
    act(box.checked);
    draw();
  });
}

window.addEventListener("resize", draw);
window.addEventListener("scroll", draw, { passive: true });

document.getElementById("memory-section").hidden = !hasMemory;
document.getElementById("memory-hint").textContent = (tracks.every((t) => t.kept === "bytes") ? "" : "In activations of stages. ") +
  (tracks.some((t) => t.ranks.some((l) => l.fixed_bytes > 0)) ? "Grey: always there. Blue: kept from forwards to backwards. " : "Blue: kept from forwards to backwards. ") +
  (tracks.some((t) => t.ranks.some(capSeen)) ? "Red line: the cap." : tracks.some((t) => t.ranks.some((l) => l.cap_bytes > 0)) ?
    "The caps are far above." : "No caps.");
fillHead();
fillFigures();
fillLegend();
fillBubble();
fillAnswer();
fillCompared();
fillPlan();
fillRanks();
say(tracks.length === 0 ? "There is no order to draw: files of strategies hold none." : "Point at an action, or press ↓ and . to go through them.");
dress();
