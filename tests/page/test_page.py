#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""Pages of plans against what the simulator says as JSON: figures, programs, memory, links, causes of idle time; every command
that writes one; names that are markup; targets that cannot be written; nothing to fetch; size."""
import json
import os
import re
import shutil
import sys
import tempfile

import data

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from command import DATA, DONE, REFUSED, SOURCE, Count, need_command, run  # noqa: E402

MODEL = os.path.join(DATA, "demo", "model.onnx")
TEXT = "text:" + os.path.join(DATA, "text", "ferry.txt")
TRAINING = ["--data", TEXT, "--loss", "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "32"]
STAGES = ["--stages", "4", "--microbatches", "8", "--schedule", "1f1b"]
LINE = {
    "format": "onnx-pipe cluster 1",
    "nodes": 8,
    "devices": [{"kind": "x", "name": "box", "alignment": 64, "flops": 1e12, "memory_bytes": 1 << 34}],
    "tiers": [{"name": "wire", "latency_ns": 20000, "bandwidth": 1e9}],
}
MARKUP = "</script><b>"  # as long as the name that it stands for
RENAMED = "layer_norm_4"
BIG = ["--ranks", "64", "--microbatches", "512"]
MOST_BYTES = 8 << 20


class Tester:
    def __init__(self, folder):
        self.count, self.folder, self.n = Count(), folder, 0
        self.cluster = self.file("line.json")
        with open(self.cluster, "w", encoding="utf-8") as file:
            json.dump(LINE, file)

    def file(self, name):
        return os.path.join(self.folder, name)

    def out(self, name, arguments, status=DONE, text=""):
        result = run(*arguments, timeout=120)
        good = result.status == status and text in result.out + result.err
        self.count.check(name, None if good else f"status {result.status}, wanted {status} '{text}': {(result.err or result.out)[-300:]}")
        return result.out

    def page(self, name, arguments):
        """The page that a command writes; `HTML` stands for its path."""
        self.n += 1
        path = self.file(f"{self.n}.html")
        self.out(name, [path if a == "HTML" else a for a in arguments])
        text, told, page = data.read(path)
        problem = None
        if "<" in told:
            problem = "the data hold '<'"
        elif "default-src 'none'" not in text or "http:" in text or "https:" in text:
            problem = "something could be fetched"
        self.count.check(name + ": by itself", problem)
        return page

    def equal(self, name, found, wanted):
        self.count.check(name, None if found == wanted else f"{str(found)[:300]} is not {str(wanted)[:300]}")

    def near(self, name, found, wanted, part=1e-9):
        self.count.check(name, None if abs(found - wanted) <= part * max(abs(wanted), 1e-300) else f"{found}, not {wanted}")


def number(page, name):
    return page["kinds"].index(name)


# ---- against the simulator ----


def check_lanes(t, name, page, track, step):
    """A rank's time is its programs and its causes, without rest; spans lie behind each other, and say the same."""
    first_idle, end_idle = number(page, "reduce"), number(page, "send-f")
    for lane in data.ranks(track):
        whole = f"{name}: rank {lane['rank']}"
        t.near(whole + ", all of its time", lane["busy"] + sum(lane["idle"].values()), step)
        found, sums = data.spans(lane, track["tick"]), {}
        apart = all(a[9] <= b[8] for a, b in zip(found, found[1:]))
        t.count.check(whole + ", order", None if apart else "spans lie over each other")
        if track["first"] != 0 or track["step"] != track["end"]:
            continue  # a period of several
        for span in found:
            key = page["kinds"][span[0]] if first_idle <= span[0] < end_idle else "busy"
            sums[key] = sums.get(key, 0) + span[9] - span[8]
        for key, value in {"busy": lane["busy"], **lane["idle"]}.items():
            t.count.check(f"{whole}, {key}", None if abs(sums.get(key, 0) - value) <= len(found) * track["tick"] else
                          f"spans come to {sums.get(key, 0)}, the lane says {value}")


def check_play(t, name, page, figures):
    track = page["tracks"][0]
    t.equal(name + ": figures", track["figures"], figures)
    lanes = data.ranks(track)
    t.equal(name + ": ranks", [(r["rank"], r["copies"]) for r in lanes], [(r["rank"], r["copies"]) for r in figures["ranks"]])
    for lane, rank in zip(lanes, figures["ranks"]):
        t.near(f"{name}: kept, rank {lane['rank']}", data.peak(lane, track["tick"]), rank["kept_bytes"])
        t.near(f"{name}: total, rank {lane['rank']}", data.peak(lane, track["tick"]) + lane["fixed_bytes"], rank["total_bytes"])
    parts, whole = data.idle_parts(track)
    t.near(name + ": the causes come to the bubble", sum(parts.values()) / whole, figures["bubble"], 1e-6)
    if track["step"] == track["end"]:
        for lane, rank in zip(lanes, figures["ranks"]):
            t.near(f"{name}: busy, rank {lane['rank']}", lane["busy"], rank["busy_ns"])
    check_lanes(t, name, page, track, figures["step_ns"])


def plans(t):
    trace = t.file("trace.json")
    arguments = ["simulate", MODEL, "--train", *TRAINING, *STAGES, "--cluster", t.cluster]
    figures = json.loads(t.out("simulate", [*arguments, "--json", "--trace", trace]))
    page = t.page("simulate --html", [*arguments, "--html", "HTML"])
    check_play(t, "simulate --html", page, figures)
    track, passes = page["tracks"][0], {number(page, p) for p in "FBIWR"}
    with open(trace, encoding="utf-8") as file:
        programs = sorted((s["tid"], s["ts"] * 1e3, s["dur"] * 1e3) for s in json.load(file) if s.get("cat") == "compute" and s["dur"] > 0)
    drawn = sorted((lane["rank"], s[8], s[9] - s[8]) for lane in data.ranks(track) for s in data.spans(lane, track["tick"])
                   if s[0] in passes or s[0] == number(page, "step") and s[9] > s[8])
    good = len(programs) == len(drawn) and all(a[0] == b[0] and abs(a[1] - b[1]) + abs(a[2] - b[2]) < 4 * track["tick"] + 1e-6
                                               for a, b in zip(programs, drawn))
    t.count.check("programs as in the trace", None if good else f"{len(drawn)} spans, {len(programs)} programs, {drawn[:2]} {programs[:2]}")
    sent = [s for lane in data.links(track) for s in data.spans(lane, track["tick"])]
    t.equal("messages of the links", len(sent), 2 * 3 * 8)
    t.count.check("messages take their latency", None if all(s[9] - s[8] >= 20000 - track["tick"] for s in sent) else "too short")
    t.equal("caps", {lane["cap_bytes"] for lane in data.ranks(track)}, {1 << 34})
    plan_file = t.file("plan.json")
    page = t.page("plan --html", ["plan", MODEL, "--train", *TRAINING, *STAGES, "--html", "HTML", "-o", plan_file])
    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    t.equal("the plan's stages", [(s["ranks"], s["nodes"], s["first"], s["last"], s["forward_ns"]) for s in page["plan"]["stages"]],
            [([s["rank"]], len(s["nodes"]), s["nodes"][0], s["nodes"][-1], s["time_ns"]) for s in plan["stages"]])
    t.equal("the plan's bytes", [r["total_bytes"] for r in page["plan"]["ranks"]], [r["total_bytes"] for r in plan["memory"]])
    t.equal("the plan's clock", page["plan"]["interval_ns"], plan["interval_ns"])
    t.near("played on its own devices", page["tracks"][0]["figures"]["step_ns"], plan["interval_ns"], 0.02)
    t.equal("the model on top", page["title"], MODEL)
    page = t.page("of requests", ["plan", MODEL, "--bind", "batch=8", "--stages", "3", "--microbatches", "4", "--html", "HTML"])
    t.equal("requests have forwards alone", {page["kinds"][c[0]] for lane in data.ranks(page["tracks"][0]) for c in lane["classes"]} & set("FBIWR"),
            {"F"})
    for n in ("1", "2"):  # lists hold several requests, the page one
        request = ["plan", MODEL, "--bind", "batch=8", "--stages", "3", "--microbatches", n]
        track = t.page(f"of requests of {n} micro-batches", [*request, "--html", "HTML"])["tracks"][0]
        t.near(f"a request of {n} micro-batches", track["figures"]["step_ns"], json.loads(t.out("the same", [*request, "--json"]))["request_ns"], 0.02)
        t.equal(f"forwards of {n} micro-batches", [sum(s[0] == number(page, "F") for s in data.spans(lane, track["tick"])) for lane in data.ranks(track)],
                [int(n)] * 3)


def orders(t):
    for name, more in (("1f1b", []), ("zb-h1", []), ("gpipe", ["--cost", "F=1,I=1,W=1,comm=0.5"]), ("interleaved:chunks=2", []),
                       ("chimera", []), ("dualpipev", []), ("zbv", []), ("2bw", []), ("seq1f1b:slices=2", []), ("1f1b", ["--replicas", "2"]),
                       ("1f1b", ["--forward"]), ("terapipe:slices=2", ["--cost", "F=3,I=2,W=1,comm=0.25"])):
        arguments = [name, "--ranks", "4", "--microbatches", "8", *more]
        figures = json.loads(t.out("schedule simulate " + name, ["schedule", "simulate", *arguments, "--json"]))
        page = t.page("schedule draw " + name, ["schedule", "draw", *arguments, "-o", "HTML"])
        track = page["tracks"][0]
        t.equal(name + ": figures", track["figures"], figures)
        t.equal(name + ": kept", [round(data.peak(lane, track["tick"]), 9) for lane in data.ranks(track)],
                [round(x, 9) for x in figures["peak_stash"]])
        parts, whole = data.idle_parts(track)
        t.count.check(name + ": the causes come to the bubble", None if abs(sum(parts.values()) / whole - figures["bubble"]) < 1e-9 else
                      f"{parts} of {whole}, bubble {figures['bubble']}")
        check_lanes(t, name, page, track, figures["makespan"])
    # By hand: 4 ranks, forward 1, backward 2, 8 micro-batches. The last rank waits for 3 forwards at first, and 3 backwards at last.
    last = data.ranks(t.page("by hand", ["schedule", "draw", "1f1b", "--ranks", "4", "--microbatches", "8", "-o", "HTML"])["tracks"][0])[3]
    t.equal("the last rank by hand", last["idle"], {"warm-up": 3, "cool-down": 6})
    delayed = t.page("delayed", ["schedule", "draw", "gpipe", "--ranks", "2", "--microbatches", "1", "--cost", "F=1,I=1,W=1,comm=2", "-o", "HTML"])
    t.equal("the first rank by hand", data.ranks(delayed["tracks"][0])[0]["idle"], {"gradient": 5, "link": 2})


def clusters(t):
    load = "send=1MB,stash=10,gradient=1000,step=2,sums=2,tensor=1KB,fixed=3"
    for name, more in (("1f1b", ["--copies", "2"]), ("zb-h1", ["--tensor", "2"]), ("2bw", []), ("interleaved:chunks=2", ["--sharded", "--copies", "2"]),
                       ("1f1b", ["--forward"])):
        arguments = [name, "--ranks", "4", "--microbatches", "8", "--cost", "F=1,I=1,W=1", "--cluster", t.cluster, "--load", load, *more]
        figures = json.loads(t.out("on a cluster, " + name, ["schedule", "simulate", *arguments, "--json"]))
        check_play(t, "on a cluster, " + name, t.page("draw " + name, ["schedule", "draw", *arguments, "-o", "HTML"]), figures)


# ---- the other commands ----


def traces(t):
    page = t.page("run --trace", ["run", MODEL, "--bind", "batch=4", "--stages", "2", "--microbatches", "4", "--trace", "HTML"])
    t.equal("the title of a run", page["title"], MODEL)
    t.equal("tracks of a run", [track["name"] for track in page["tracks"]], ["planned", "measured"])
    for track in page["tracks"]:
        done = sorted((s[1], s[7]) for lane in data.ranks(track) for s in data.spans(lane, track["tick"]) if s[0] == number(page, "F"))
        t.equal(track["name"] + ": every forward", done, [(s, m) for s in range(2) for m in range(4)])
        check_lanes(t, track["name"], page, track, track["step"])
    page = t.page("train --trace", ["train", MODEL, *TRAINING, "--stages", "2", "--microbatches", "4", "--schedule", "1f1b", "--replicas", "2",
                                    "--steps", "2", "--trace", "HTML"])
    kinds = {page["kinds"][s[0]] for lane in page["tracks"][1]["lanes"] for s in data.spans(lane, page["tracks"][1]["tick"])}
    t.count.check("measured: forwards, backwards, sums, steps", None if {"F", "B", "reduce", "step"} <= kinds else str(kinds))
    for track in page["tracks"]:
        check_lanes(t, "train, " + track["name"], page, track, track["step"])
        given = [data.peak(lane, track["tick"]) for lane in data.ranks(track)]
        t.count.check(f"train, {track['name']}: kept", None if all(x > 0 for x in given) else str(given))


def planners(t):
    arch = ["--arch", "gpt:layers=8,hidden=256,heads=4,vocab=1000,seq=64", "--cluster", "config-a:nodes=1", "--planner", "megatron", "--batch", "16"]
    answer = json.loads(t.out("plan --arch", ["plan", *arch, "--json"]))
    page = t.page("plan --arch --html", ["plan", *arch, "--html", "HTML"])
    t.equal("the planner's answer", page["answer"], answer)
    figures = json.loads(t.out("simulate --arch", ["simulate", *arch, "--json"]))
    t.equal("figures of the answer", page["tracks"][0]["figures"], figures)
    arch[arch.index("--planner"):arch.index("--planner") + 2] = ["--auto"]
    answer = json.loads(t.out("plan --auto", ["plan", *arch, "--json"]))
    page = t.page("plan --auto --html", ["plan", *arch, "--html", "HTML"])
    t.equal("planner auto's answer", page["answer"], answer)
    ranked = page["answer"]["search"]["ranked"]
    t.count.check("runners-up, and why they lose", None if len(ranked) > 1 and all(r["reason"] for r in ranked[1:]) else str(ranked)[:300])
    page = t.page("a model's plan by auto", ["plan", MODEL, "--train", *TRAINING, "--auto", "--cluster", t.cluster, "--html", "HTML"])
    t.equal("its plan and its answer", (page["plan"]["microbatches"] > 0, page["answer"]["planner"]), (True, "auto"))
    files = []
    for schedule in ("1f1b", "zb-h1"):
        files.append(t.file(schedule + ".json"))
        t.out("a plan", ["plan", MODEL, "--train", *TRAINING, *STAGES[:-1], schedule, "-o", files[-1]])
    compared = json.loads(t.out("plan explain", ["plan", "explain", *files, "--json"]))
    page = t.page("plan explain --html", ["plan", "explain", *files, "--html", "HTML"])
    t.equal("what differs", page["compared"], compared)
    t.equal("two tracks", [track["name"] for track in page["tracks"]], files)
    for track, path in zip(page["tracks"], files):
        with open(path, encoding="utf-8") as file:
            plan = json.load(file)
        t.near("the step of " + os.path.basename(path), track["figures"]["step_ns"], plan["interval_ns"], 0.02)


def crossing(plan):
    """{(from, to): [bytes, tensors]} of a plan's file."""
    sums = {}
    for one in plan["crossings"]:
        pair = sums.setdefault((one["from"], one["to"]), [0, 0])
        pair[0] += one["bytes"]
        pair[1] += 1
    return sums


def beside(t, name, page, a, b):
    t.equal(name, [(c["from"], c["to"], c["bytes"], c["tensors"]) for c in page["compared"]["cuts"]],
            [(*pair, *({"a": a.get(pair, [0, 0])[k], "b": b.get(pair, [0, 0])[k]} for k in (0, 1))) for pair in sorted({**a, **b})])


def cuts(t):
    """Bytes that cross, of two plans beside each other: checked by hand, however micro-batches are taken apart; messages take their
    time."""
    rows, tokens, width = 4, 64, 56
    one = rows * tokens * width * 4
    at = ["--cut", "add_16;add_25;add_34", "--stages", "4", "--microbatches", "8"]
    ways = {"whole": (["--schedule", "1f1b"], 1), "slices": (["--schedule", "terapipe:slices=2"], 2), "replicas": (["--schedule", "1f1b", "--replicas", "2,2,2,1"], 2),
            "more": (["--schedule", "1f1b", "--transport", "emulated:latency_us=50,bandwidth=20000000"], 1)}
    plan = {}
    for name, (more, pieces) in ways.items():
        t.out("a cut plan, " + name, ["plan", MODEL, "--train", *TRAINING, *at, *more, "-o", t.file(name + ".json")])
        with open(t.file(name + ".json"), encoding="utf-8") as file:
            plan[name] = json.load(file)
        t.equal("bytes that cross, " + name, crossing(plan[name]), {(s, s + 1): [one, 1] for s in range(3)})
        t.equal("of a message, " + name, {c["message_bytes"] for c in plan[name]["crossings"]}, {one // pieces})
    paths = [t.file("1f1b.json"), t.file("more.json")]
    with open(paths[0], encoding="utf-8") as file:
        plan["1f1b"] = json.load(file)
    sums = crossing(plan["1f1b"])
    compared = t.page("explain, cuts", ["plan", "explain", *paths, "--html", "HTML"])
    for track, name in zip(compared["tracks"], ("1f1b", "more")):
        t.equal(name + ": what is kept, beside each other", track["kept"], "bytes")
        for lane, memory in zip(data.ranks(track), plan[name]["memory"]):
            least, most = memory["total_bytes"] - memory["stash_bytes"], memory["total_bytes"]
            kept = lane["fixed_bytes"] + data.peak(lane, track["tick"])
            t.count.check(f"{name}: bytes of rank {lane['rank']}", None if lane["fixed_bytes"] == least < kept <= 1.05 * most else f"{least} < {kept} <= {most}")
    beside(t, "cuts beside each other", compared, sums, crossing(plan["more"]))
    t.near("a step whose messages take their time", compared["tracks"][1]["figures"]["step_ns"], plan["more"]["interval_ns"], 0.02)
    waits = max(lane["idle"].get("link", 0) for lane in data.ranks(compared["tracks"][1]))
    t.count.check("ranks wait for the link", None if waits > one / 20e6 * 1e9 else f"{waits} ns")
    said = t.out("plan explain, cuts", ["plan", "explain", *paths])
    t.count.check("cuts in words", None if "* all cuts (KiB)" in said and "cut 0 -> 1 (KiB)" in said else said[-500:])
    skip = t.file("skip.json")
    t.out("a plan of stages that all read one tensor", ["plan", os.path.join(DATA, "odd", "skip_tensors", "model.onnx"), "--stages", "3", "-o", skip])
    with open(skip, encoding="utf-8") as file:
        found = crossing(json.load(file))
    t.equal("two stages farther", set(found), {(0, 1), (0, 2), (1, 2)})
    page = t.page("explain, no chain", ["plan", "explain", skip, skip, "--html", "HTML"])
    beside(t, "its cuts", page, found, found)
    page = t.page("explain, other stages", ["plan", "explain", skip, t.file("whole.json"), "--html", "HTML"])
    beside(t, "cuts that only one has", page, found, crossing(plan["whole"]))
    alone = t.file("alone.json")
    t.out("a plan of one stage", ["plan", MODEL, "--bind", "batch=8", "--stages", "1", "-o", alone])
    t.equal("of one stage", t.page("explain, one stage", ["plan", "explain", alone, alone, "--html", "HTML"])["compared"]["cuts"], [])
    hostile_cuts(t, plan["whole"])


def hostile_cuts(t, plan):
    """Files of before do not say what crosses; some say what cannot be."""
    def written(name, crossings):
        with open(t.file(name), "w", encoding="utf-8") as file:
            json.dump({**{k: v for k, v in plan.items() if k != "crossings"}, **({} if crossings is None else {"crossings": crossings})}, file)
        return t.file(name)

    before, given = written("before.json", None), plan["crossings"]
    page = t.page("a file of before", ["plan", "explain", before, t.file("whole.json"), "--html", "HTML"])
    t.equal("it does not say its cuts", {(c["bytes"]["a"], c["tensors"]["a"]) for c in page["compared"]["cuts"]}, {(None, None)})
    t.near("a chain all the same", page["tracks"][0]["figures"]["step_ns"], plan["interval_ns"], 0.02)
    for what, broken, text in (("back", [{**given[0], "from": 2}], "runs from stage 2 to 1"), ("far", [{**given[0], "to": 4}], "the plan has 4 stages"),
                               ("unsorted", given[::-1], "must not follow"), ("negative", [{**given[0], "bytes": -1}], "bytes"), ("no list", {}, "crossings"),
                               ("no object", [7], "must be an object"), ("huge", [{**given[0], "message_bytes": 1 << 60}], "message_bytes")):
        for more in ([], ["--html", t.file("no.html")]):
            t.out("crossings: " + what, ["plan", "explain", written("hostile.json", broken), before, *more], REFUSED, text)


# ---- names, targets, size ----


def names(t):
    odd = t.file("<!--<script>.onnx")
    with open(MODEL, "rb") as file:
        model = file.read()
    t.count.check("the name to be replaced", None if model.count(RENAMED.encode()) > 1 and len(RENAMED) == len(MARKUP) else "not there")
    with open(odd, "wb") as file:
        file.write(model.replace(RENAMED.encode(), MARKUP.encode()))
    page = t.page("names that are markup", ["plan", odd, "--bind", "batch=8", *STAGES[:4], "--html", "HTML"])
    told = json.dumps(page["plan"]["stages"] + page["plan"]["cut"])
    t.equal("the model's name", page["title"], odd)
    t.count.check("the node's name", None if MARKUP in told else told[:500])


def refusals(t):
    away = t.file(os.path.join("nowhere", "page.html"))
    for name, arguments in (("plan", ["plan", MODEL, "--bind", "batch=8", *STAGES[:4], "--html", away]),
                            ("simulate", ["simulate", MODEL, "--bind", "batch=8", *STAGES[:4], "--cluster", t.cluster, "--html", away]),
                            ("simulate --trace", ["simulate", MODEL, "--bind", "batch=8", *STAGES[:4], "--cluster", t.cluster, "--trace", away]),
                            ("run", ["run", MODEL, "--bind", "batch=8", *STAGES[:4], "--trace", away]),
                            ("train", ["train", MODEL, *TRAINING, *STAGES, "--steps", "1", "--trace", away]),
                            ("draw", ["schedule", "draw", "1f1b", "--ranks", "4", "--microbatches", "8", "-o", away]),
                            ("explain", ["plan", "explain", t.file("1f1b.json"), t.file("zb-h1.json"), "--html", away])):
        said = t.out(name + " into no folder", arguments, REFUSED, f"cannot write {away}")
        t.count.check(name + ": nothing was done before", None if "ms" not in said.replace("params", "") or name == "train" else said[-200:])
    for name in ("rank 0: 0F9", "rank 0: 7F0 0B0"):
        broken = t.file("broken.json")
        with open(t.file("1f1b.json"), encoding="utf-8") as file:
            plan = json.load(file)
        plan["actions"][0] = name[8:]
        with open(broken, "w", encoding="utf-8") as file:
            json.dump(plan, file)
        t.out("records that are no order", ["plan", "explain", broken, t.file("1f1b.json"), "--html", t.file("no.html")], REFUSED, "broken.json")


def size(t):
    for name, more in (("1f1b", ["--cluster", "selene:nodes=8", "--cost", "F=10,I=11,W=12", "--load", "send=25MiB,stash=400MiB,fixed=20GiB"]), ("zbv", [])):
        page = t.page("64 x 512, " + name, ["schedule", "draw", name, *BIG, *more, "-o", "HTML"])
        n_bytes = os.path.getsize(t.file(f"{t.n}.html"))
        t.count.check(f"64 x 512, {name}: size", None if n_bytes <= MOST_BYTES else f"{n_bytes} bytes")
        programs = sum(s[0] < number(page, "step") for lane in data.ranks(page["tracks"][0]) for s in data.spans(lane, page["tracks"][0]["tick"]))
        t.equal(f"64 x 512, {name}: programs", programs, {"1f1b": 64 * 512 * 2, "zbv": programs}[name])


# ---- colours ----


def luminance(colour):
    parts = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def contrast(a, b):
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


# Linear colours as seen without one kind of cone: Vienot, Brettel and Mollon (1999), for the first two.
WITHOUT = {"all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
           "protanopia": ((0.1124, 0.8876, 0), (0.1124, 0.8876, 0), (0.004, -0.004, 1)),
           "deuteranopia": ((0.2928, 0.7072, 0), (0.2928, 0.7072, 0), (-0.0223, 0.0223, 1))}


def seen(colour, how):
    """CIE L*a*b* of a colour, as it is seen."""
    linear = [c / 255 / 12.92 if c <= 10 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    r, g, b = (max(0, min(1, sum(k * x for k, x in zip(row, linear)))) for row in WITHOUT[how])
    xyz = ((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505, 0.2126 * r + 0.7152 * g + 0.0722 * b, (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089)
    f = [x ** (1 / 3) if x > 0.008856 else 7.787 * x + 16 / 116 for x in xyz]
    return 116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])


def colours(t):
    with open(os.path.join(SOURCE, "partition", "study", "page", "web", "style.css"), encoding="utf-8") as file:
        schemes = data.style(file.read())
    t.equal("both ways to be dark", schemes["dark"], schemes["dark by the system"])
    passes = ("f", "b", "i", "w", "r", "step", "sum")
    for scheme in ("light", "dark"):
        c = schemes[scheme]
        pairs = [(a, b) for a in ("ink", "soft") for b in ("back", "panel")] + [("on-" + p, p) for p in passes] + [("ink", "lane"), ("accent", "back")]
        for a, b in pairs:
            t.count.check(f"{scheme}: {a} on {b}", None if contrast(c[a], c[b]) >= 4.5 else f"contrast {contrast(c[a], c[b]):.2f}")
        for how in WITHOUT:
            for i, a in enumerate(passes):
                for b in passes[:i]:
                    apart = sum((x - y) ** 2 for x, y in zip(seen(c[a], how), seen(c[b], how))) ** 0.5
                    t.count.check(f"{scheme}, {how}: {a} and {b}", None if apart >= 10 else f"apart by {apart:.1f}")
        with open(os.path.join(SOURCE, "partition", "study", "page", "web", "panels.js"), encoding="utf-8") as file:
            plural = re.findall(r'" (?:micro-batches|ranks|samples)', file.read())
        t.count.check("counts of one", str(plural) if plural else None)
        with open(os.path.join(SOURCE, "partition", "study", "page", "web", "data.js"), encoding="utf-8") as file:
            idle = re.findall(r'colour: "([a-z-]+)", title[^\n]*\n *what:', file.read())
        t.count.check("a colour for each cause", None if len(idle) == len(set(idle)) == 10 else str(idle))
        for i, a in enumerate(idle):
            for b in [*idle[:i], "lane"]:
                apart = sum((x - y) ** 2 for x, y in zip(seen(c[a], "all cones"), seen(c[b], "all cones"))) ** 0.5
                t.count.check(f"{scheme}: {a} and {b}", None if apart >= 6 else f"apart by {apart:.1f}")


def main():
    need_command()
    folder = tempfile.mkdtemp()
    try:
        t = Tester(folder)
        for part in (colours, plans, orders, clusters, traces, planners, cuts, names, refusals, size):
            part(t)
        return t.count.finish()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
