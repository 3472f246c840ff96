#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Clusters by name, plans and schedules played on them: figures that follow by hand, files, refusals."""
import json
import os
import sys
import tempfile

from command import DATA, DONE, REFUSED, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
LINE = {
    "format": "onnx-pipe cluster 1",
    "nodes": 8,
    "devices": [{"kind": "x", "alignment": 64, "flops": 1e12}],
    "tiers": [{"name": "wire", "latency_ns": 0, "bandwidth": 1e9}],
}
ONE = ["schedule", "simulate", "1f1b", "--ranks", "4", "--microbatches", "8", "--cost", "F=1,I=1,W=1", "--json"]


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "line.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(LINE, file)
        cases(count, folder, path)
    return count.finish()


def expect(count, name, arguments, status, text=""):
    result = run(*arguments)
    good = result.status == status and text in result.out + result.err
    wrong = f"{result.status}, not {status} with '{text}': {(result.err or result.out)[-300:]}"
    count.check(name, result.broken(30, 1024) or (None if good else wrong))
    return result.out


def near(count, name, found, wanted):
    count.check(name, None if abs(found - wanted) <= 1e-9 * abs(wanted) else f"{found}, not {wanted}")


def cases(count, folder, path):
    plain = json.loads(expect(count, "free links", [*ONE, "--cluster", path, "--load", "step=2"], DONE))
    near(count, "free links", plain["step_ns"], 3e6 * (8 + 3) + 2e6)
    near(count, "bubble", plain["bubble"], 1 - (24e6 + 2e6) / 35e6)
    near(count, "micro-batches", plain["microbatches_per_s"], 8 / plain["step_ns"] * 1e9)
    sent = json.loads(expect(count, "sent", [*ONE, "--cluster", path, "--load", "send=1MB,stash=10"], DONE))
    count.check("bytes", None if sent["tiers"][0]["bytes"] == 2 * 3 * 8 * 10**6 else str(sent["tiers"]))
    count.check("kept", None if [r["kept_bytes"] for r in sent["ranks"]] == [40, 30, 20, 10] else str(sent["ranks"]))
    copies = json.loads(expect(count, "copies", [*ONE, "--cluster", path, "--copies", "2", "--load",
                                                 "gradient=1000"], DONE))
    count.check("copies", None if copies["devices"] == 8 and all(r["copies"] == 2 for r in copies["ranks"])
                else str(copies["ranks"]))
    expect(count, "too many", [*ONE, "--cluster", path, "--copies", "3"], REFUSED, "but the cluster has 8")
    expect(count, "a ready one", [*ONE, "--cluster", "selene:nodes=2"], DONE, "HDR spine")
    expect(count, "nobody", [*ONE, "--cluster", "selen"], USAGE, "piz-daint, selene")
    expect(count, "draw", ["schedule", "draw", "1f1b", "--ranks", "4", "--microbatches", "8", "--cluster", path], DONE,
           "<svg")
    expect(count, "load", [*ONE, "--cluster", path, "--load", "mass=1"], USAGE, "send, stash, input")
    expect(count, "show", ["schedule", "show", "1f1b", "--ranks", "4", "--microbatches", "8", "--cluster", path],
           USAGE, "simulate and draw do")
    plans(count, folder, path)


def plans(count, folder, path):
    options = ["--bind", "batch=8", "--microbatches", "4", "--stages", "4"]
    trace, plan = os.path.join(folder, "t.json"), os.path.join(folder, "plan.json")
    made = json.loads(expect(count, "model", ["simulate", MODEL, *options, "--cluster", path, "--json", "--trace",
                                              trace], DONE))
    count.check("model", None if made["step_ns"] > 0 and len(made["ranks"]) == 4 else str(made))
    with open(trace, encoding="utf-8") as file:
        spans = json.load(file)
    computes = [s for s in spans if s.get("cat") == "compute"]
    count.check("trace", None if len(computes) >= 16 else f"{len(computes)} programs")
    expect(count, "by name", ["plan", MODEL, *options, "--cluster", "h100", "-o", plan], DONE)
    alone(count, folder, plan, path, [])
    train = ["--train", "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss",
             "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "32"]
    how = ["--stages", "4", "--microbatches", "8", "--schedule", "1f1b", "--cluster", path]
    expect(count, "training", ["simulate", MODEL, *train, *how], DONE, "busiest port")
    expect(count, "training", ["plan", MODEL, *train, *how, "-o", plan], DONE)
    alone(count, folder, plan, path, train)
    refused(count, folder, plan)
    here(count, options)


def alone(count, folder, plan, path, train):
    """A plan's file without its model: on any cluster what it is with it, figures and times."""
    for cluster in ([], ["--cluster", path], ["--cluster", "h200"]):
        own, other = os.path.join(folder, "own.json"), os.path.join(folder, "other.json")
        said = expect(count, "a plan's", ["simulate", MODEL, *train, "--plan", plan, *cluster, "--json", "--trace", own], DONE)
        found = expect(count, "alone", ["simulate", plan, *cluster, "--json", "--trace", other], DONE)
        with open(own, encoding="utf-8") as one, open(other, encoding="utf-8") as two:
            same = one.read() == two.read() and said == found
        count.check(f"alone {cluster}", None if same and found != "" else f"{found[:300]}, not {said[:300]}")
    expect(count, "alone, links", ["simulate", plan, "--cluster", "h200"], DONE, "NVSwitch")
    page = os.path.join(folder, "page.html")
    expect(count, "alone, a page", ["simulate", plan, "--html", page], DONE)
    with open(page, encoding="utf-8") as file:
        count.check("alone, a page", None if plan in file.read() else "its title lacks")


def refused(count, folder, plan):
    """Options that a file settles, members that it lacks, files of another kind."""
    for option in (["--stages", "2"], ["--bind", "seq=4"], ["--train"], ["--plan", plan], ["--auto"]):
        expect(count, "settled", ["simulate", plan, *option], USAGE, f"which already settles {option[0]}")
    for name, change, text in (("old", lambda p: p.pop("play"), "plan MODEL --plan FILE -o FILE"),
                               ("changed", lambda p: p.update(depth=3), "it was changed"),
                               ("strategy", lambda p: p.update(format="onnx-pipe strategy 1"), "a planner's answer"),
                               ("nothing", lambda p: p.clear(), '"format" must be a string')):
        path = os.path.join(folder, name + ".json")
        with open(plan, encoding="utf-8") as file:
            changed = json.load(file)
        change(changed)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(changed, file)
        expect(count, name, ["simulate", path], REFUSED, text)
    made = os.path.join(folder, "strategy.json")
    expect(count, "strategy", ["plan", "--arch", "gpt:layers=4,hidden=64,heads=4,vocab=128,seq=32", "--auto", "--batch", "8",
                               "--cluster", "h100", "-o", made], DONE)
    expect(count, "strategy", ["simulate", made], REFUSED, "--arch or --profile")


def here(count, options):
    """Without a cluster: a plan's own devices and link; a strategy's machine."""
    two = ["--device", "cpu,threads=1", "--device", "cpu,threads=1"]
    said = json.loads(expect(count, "here", ["plan", MODEL, *options, *two[:2], "--json"], DONE))
    played = json.loads(expect(count, "here", ["simulate", MODEL, *options, *two[:2], "--json"], DONE))
    near(count, "here, a request", played["step_ns"], said["request_ns"])
    asked = json.loads(expect(count, "auto here", ["plan", MODEL, "--auto", *two, "--bind", "batch=8", "--json"], DONE))
    found = json.loads(expect(count, "auto here", ["simulate", MODEL, "--auto", *two, "--bind", "batch=8", "--json"], DONE))
    near(count, "auto here, a request", found["step_ns"], asked["request_ns"])
    arch = ["--arch", "gpt:layers=4,hidden=64,heads=4,vocab=128,seq=32", "--auto", "--batch", "8", *two, "--json"]
    strategy = json.loads(expect(count, "described, here", ["plan", *arch], DONE))
    near(count, "described, here", json.loads(expect(count, "described, here", ["simulate", *arch], DONE))["step_ns"], strategy["step_ns"])


if __name__ == "__main__":
    sys.exit(main())
