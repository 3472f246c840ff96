/* SPDX-License-Identifier: Apache-2.0 */
/* The data of the page, read: lanes with typed arrays of spans; names and units. */

const page = JSON.parse(document.getElementById("data").textContent);

/* By name, as the data list their kinds: colour (a variable of the style), title, what it means. */
const KINDS = {
  "F": { colour: "f", title: "Forward", word: "forward" },
  "B": { colour: "b", title: "Backward", word: "backward" },
  "I": { colour: "i", title: "Backward, inputs", word: "backward for the inputs" },
  "W": { colour: "w", title: "Backward, weights", word: "backward for the weights" },
  "R": { colour: "r", title: "Forward again", word: "forward computed again" },
  "step": { colour: "step", title: "Optimizer", word: "optimizer step" },
  "reduce": { colour: "sum", title: "Sums over replicas", word: "gradients summed over replicas",
    what: "Stands still until the gradients of its stages are summed over all replicas." },
  "gather": { colour: "gather", title: "Gathering weights", word: "weights gathered from replicas",
    what: "Stands still until the weights that replicas have updated in parts are whole again." },
  "tensor": { colour: "tensor", title: "Tensor group", word: "sums of the tensor group",
    what: "Stands still in sums, or gathers, of the devices that share each of its layers." },
  "copy": { colour: "copy", title: "Copies to the host", word: "copied to or from the host's memory",
    what: "Stands still until what it keeps has gone to the host's memory, or has come back." },
  "warm-up": { colour: "fill", title: "Warm-up", word: "warm-up",
    what: "From the beginning to the rank's first program: the pipeline fills." },
  "cool-down": { colour: "drain", title: "Cool-down", word: "cool-down",
    what: "From the rank's last program to the end of the step: the pipeline empties." },
  "activation": { colour: "wait-f", title: "Waiting for activations", word: "waits for an activation",
    what: "Between two programs: the stage before has not made yet what the next forward reads." },
  "gradient": { colour: "wait-b", title: "Waiting for gradients", word: "waits for a gradient",
    what: "Between two programs: the stage behind has not made yet what the next backward reads." },
  "link": { colour: "link", title: "On the link", word: "waits for a message on its way",
    what: "What the next program reads has been made, and is on its way, in a queue for the link, or waits for its place; measured, until the rank has noticed." },
  "other": { colour: "other", title: "Other", word: "waits",
    what: "None of these: overhead between programs, and what a period that repeats has left." },
  "send-f": { colour: "send", title: "Messages", word: "activations" },
  "send-b": { colour: "send", title: "Messages", word: "gradients" },
};
const kinds = page.kinds.map((name) => ({ name, ...KINDS[name] }));
const number = (name) => page.kinds.indexOf(name);
const FIRST_IDLE = number("reduce"), END_IDLE = number("send-f");
const isIdle = (kind) => kind >= FIRST_IDLE && kind < END_IDLE;

/* ---- spans ---- */

/* start, end [n] in the page's unit, of so many to a tick; class and micro-batch (-1: none) of each. */
function readSpans(lane, tick) {
  const text = atob(lane.data), n = lane.n;
  const spans = { n, start: new Float64Array(n), end: new Float64Array(n), cls: new Uint16Array(n), mb: new Int32Array(n) };
  const lastMb = new Int32Array(lane.classes.length).fill(-1), lastLength = new Float64Array(lane.classes.length);
  let at = 0, end = 0;
  function varint() {
    let value = 0, scale = 1, byte;
    do {
      byte = text.charCodeAt(at++);
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte > 127);
    return value;
  }
  function zigzag() {
    const value = varint();
    return value % 2 === 0 ? value / 2 : -(value + 1) / 2;
  }
  for (let i = 0; i < n; ++i) {
    const cls = varint();
    spans.mb[i] = lastMb[cls] = lastMb[cls] + 1 + zigzag();
    const start = end + zigzag();
    lastLength[cls] += zigzag();
    end = start + lastLength[cls];
    spans.start[i] = start * tick;
    spans.end[i] = end * tick;
    spans.cls[i] = cls;
  }
  return spans;
}

/* Bytes kept over time: [times], [levels] from each on, and the most. */
function readKept(lane) {
  const changes = [], { spans, classes } = lane;
  for (let i = 0; i < spans.n; ++i) {
    const [, , , , , take, give] = classes[spans.cls[i]];
    if (take > 0)
      changes.push([spans.start[i], take]);
    if (give > 0)
      changes.push([spans.end[i], -give]);
  }
  const time = new Float64Array(changes.length), level = new Float64Array(changes.length);
  let held = 0, peak = 0;
  changes.forEach(([at, bytes], i) => {
    held += bytes;
    peak = Math.max(peak, held);
    time[i] = at;
    level[i] = held;
  });
  return { time, level, peak };
}

/* Spans as they are drawn: as long as the track's stretch says. */
function setSpans(lane) {
  const spans = readSpans(lane, lane.track.tick * lane.track.stretch);
  lane.spans = spans;
  lane.maxLength = 0;
  for (let i = 0; i < spans.n; ++i)
    lane.maxLength = Math.max(lane.maxLength, spans.end[i] - spans.start[i]);
  if (!lane.isLink)
    lane.kept = readKept(lane);
}

function readLane(raw, track) {
  const lane = { ...raw, data: raw.spans, track, isLink: raw.peer >= 0, kindOf: raw.classes.map((c) => c[0]) };
  setSpans(lane);
  return lane;
}

const tracks = page.tracks.map((raw, index) => {
  const track = { ...raw, index, stretch: 1 };
  track.lanes = raw.lanes.map((lane) => readLane(lane, track));
  track.ranks = track.lanes.filter((lane) => !lane.isLink);
  track.links = track.lanes.filter((lane) => lane.isLink);
  return track;
});
const END = Math.max(1e-300, ...tracks.map((track) => track.end));

/* One scale of time for all tracks, or each as wide as the longest. */
function setScales(own) {
  for (const track of tracks) {
    track.stretch = own && track.end > 0 ? END / track.end : 1;
    track.lanes.forEach(setSpans);
  }
}

/* ---- numbers for people ---- */

const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];

/* Digits that say so many places of it. */
function digits(value, places) {
  const whole = Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1)));
  return value.toLocaleString("en", { maximumFractionDigits: Math.max(0, places - 1 - whole), useGrouping: true });
}

/* The same, with zeros behind where others of its size have digits there. */
function fixed(value, places) {
  const whole = Math.max(0, Math.floor(Math.log10(Math.abs(value) || 1))), n = Math.max(0, places - 1 - whole);
  return value.toLocaleString("en", { minimumFractionDigits: n, maximumFractionDigits: n, useGrouping: true });
}

function time(ns, places = 5, like = ns) {
  if (page.unit !== "ns")
    return digits(ns, places + 2);
  if (ns === 0)
    return "0";
  const [scale, name] = UNITS.find(([s]) => Math.abs(like) >= s) || UNITS[3];
  return fixed(ns / scale, places) + " " + name;
}

function bytes(n) {
  const names = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; i < 4 && n >= 1024; ++i)
    n /= 1024;
  return digits(n, 4) + " " + names[i];
}

/* What is kept: bytes, or activations of stages where an order says no bytes. */
const kept = (track, n) => (track.kept === "bytes" ? bytes(n) : digits(n, 4) + (n === 1 ? " activation" : " activations"));

/* A track's or file's name, of a path its end: as much as tells the tracks, or files, apart. */
function shortName(path) {
  const end = (text, n) => text.split("/").slice(-n).join("/");
  const names = page.compared ? [page.compared.a, page.compared.b] : page.tracks.map((t) => t.name);
  const n = [1, 2, 3].find((k) => new Set(names.map((name) => end(name, k))).size === names.length);
  return n === undefined ? path : end(path, n);
}

const percent = (x) => digits(100 * x, 3) + " %";
