#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""--auto: what it decides runs, equal to its reference to the bit; what is given stays; devices alone mean it; files and
their marks; what is missing where nothing fits."""
import json
import os
import re
import sys
import tempfile

from command import DATA, DONE, REFUSED, USAGE, Count, need_command, run

DEMO = os.path.join(DATA, "demo", "model.onnx")
LOSS = ["--loss", "cross-entropy:logits=logits,labels=input_ids,shift=1"]
TEXT = ["--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--bind", "seq=16", "--batch", "8"]
STEPS = ["--steps", "2", "--optimizer", "sgd:lr=0.1"]
TWO = ["--device", "cpu,threads=1", "--device", "cpu,threads=1"]
SHAPE = ["--bind", "batch=4,seq=8"]
ARCH = ["--arch", "gpt:layers=6,hidden=768,heads=12,vocab=50304,seq=1024,type=fp16", "--cluster", "h100:nodes=1", "--batch", "64"]


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        runs(count, folder)
        trains(count, folder)
        devices_alone(count)
        two_kinds(count, folder)
        whole(count, folder)
        described(count, folder)
        nothing_fits(count, folder)
    return count.finish()


def expect(count, name, arguments, status, *texts):
    result = run(*arguments, timeout=240)
    everything = result.out + result.err
    good = result.status == status and all(text in everything for text in texts)
    wrong = f"{result.status}, not {status} with {texts}: {(result.err or result.out)[-400:]}"
    count.check(name, result.broken(200, 2048) or (None if good else wrong))
    return result.out


def runs(count, folder):
    """Requests, under every objective that they have."""
    plan = os.path.join(folder, "plan.json")
    for objective in ("latency", "throughput", "memory"):
        out = expect(count, objective, ["run", DEMO, f"--auto={objective}", *TWO, *SHAPE, "--reference"], DONE,
                     "identical to the plan's reference", "planner   auto", f"objective {objective}", "simulated", "\n 1  ", "ms for a request (")
        count.check(f"{objective}: requests", "mini-batches are no requests" if "mini-batch" in out else None)
        count.check(f"{objective}: reasons", None if re.search(r"\n 2  .*\n      \S", out) else out[:600])
    expect(count, "every core", ["run", DEMO, "--auto", *SHAPE, "--reference"], DONE, "identical to the plan's reference")
    made = json.loads(expect(count, "written", ["plan", DEMO, "--auto", *TWO, *SHAPE, "--json", "-o", plan], DONE))
    count.check("signed", None if made["planner"] == "auto" and "stopped" not in made else made.get("planner", "nobody"))
    expect(count, "read", ["run", DEMO, "--plan", plan, "--reference"], DONE, "identical to the plan's reference", "planner auto")
    expect(count, "by the clock", ["plan", DEMO, "--auto", "--budget", "0.000000001", *TWO, *SHAPE, "-o", plan], DONE,
           "stopped   by the clock", "ended early, by clock")
    with open(plan, encoding="utf-8") as file:
        count.check("marked", None if json.load(file)["stopped"] == "clock" else "the file says nothing of the clock")
    expect(count, "told apart", ["plan", "explain", plan, plan], DONE, "stopped by clock")


def trains(count, folder):
    """Mini-batches; what is given stays as it is."""
    for name, more in (("step", []), ("memory", ["--auto=memory"]), ("stale", ["--allow-stale", "--stages", "2"])):
        expect(count, name, ["train", DEMO, *TEXT, *LOSS, *STEPS, "--auto", *more, *TWO, "--reference"], DONE, "bit-equal", "planner   auto")
    given = ["--schedule", "gpipe", "--stages", "2", "--microbatches", "4", "--replicas", "1", "--recompute", "stage"]
    made = json.loads(expect(count, "given", ["plan", DEMO, "--train", *TEXT, *LOSS, "--auto", *given, *TWO, "--json"], DONE))
    found = (made["schedule"], len(made["stages"]), made["microbatches"], made["training"]["recompute"], len(made["devices"]))
    count.check("given", None if found == ("gpipe", 2, 4, "stage", 2) else str(found))
    stale = json.loads(expect(count, "late weights", ["plan", DEMO, "--train", *TEXT, *LOSS, "--auto", "--stages", "2", *TWO, "--json"], DONE))
    count.check("late weights", None if stale["schedule"] != "2bw" else "weights are late, and nobody allowed it")


def devices_alone(count):
    """Devices without stages, ranks, schedule, cut or plan mean --auto; with any of these they do not."""
    expect(count, "alone", ["run", DEMO, *TWO, *SHAPE], DONE, "planner   auto")
    expect(count, "a cluster alone", ["plan", DEMO, "--cluster", "h100", *SHAPE], DONE, "planner   auto")
    for given in (["--stages", "2"], ["--ranks", "2"], ["--schedule", "1f1b"]):
        out = expect(count, given[0], ["run", DEMO, *TWO, *SHAPE, *given], DONE)
        count.check(given[0], "a planner was asked" if "planner" in out else None)
    for option in (["--budget", "1"], ["--within", "5"], ["--allow-stale"], ["--hypothetical"], ["--rows", "2"]):
        expect(count, "no planner", ["plan", DEMO, "--stages", "2", *option], USAGE, f"{option[0]} needs a planner")
    expect(count, "a cut", ["plan", DEMO, "--auto", "--cut", "x", *TWO], USAGE, "--cut: planner 'auto' decides that")
    expect(count, "single stages", ["plan", DEMO, "--train", *LOSS, "--auto", "--replicas", "2,1", *TWO], USAGE, "--replicas 2,1: planner 'auto' decides about single stages")


def whole(count, folder):
    """A batch that cannot be cut, as what quantizes by the tensor has it: one micro-batch, and why; asked for more it is refused."""
    model = os.path.join(DATA, "small", "dynamic8", "model.onnx")
    four, why, plan = ["--bind", "batch=4"], "node 'DynamicQuantizeLinear_0'", os.path.join(folder, "whole.json")
    for objective in ("latency", "throughput"):
        expect(count, f"whole, {objective}", ["run", model, *four, *TWO, f"--auto={objective}", "--reference"], DONE,
               "identical to the plan's reference", "whole     the batch is one micro-batch: ", why, "1 x 1 micro-batches of 4")
    expect(count, "whole, stages", ["run", model, *four, *TWO, "--auto", "--stages", "2", "--reference"], DONE,
           "identical to the plan's reference", "plan: 2 stages on ")
    for option in (["--microbatches", "4"], ["--replicas", "2"], ["--samples", "1,4"]):
        expect(count, f"whole, {option[0]}", ["plan", model, *four, *TWO, "--auto", *option], REFUSED, why)
    expect(count, "whole, written", ["profile", model, *four, "-o", plan], DONE, "one micro-batch: ", why)
    expect(count, "whole, read", ["plan", "--profile", plan, "--cluster", "h100", "--batch", "4", "--auto=latency"], DONE, why)
    expect(count, "whole, read", ["plan", "--profile", plan, "--cluster", "h100", "--batch", "4", "--auto=latency", "--microbatches", "2"],
           REFUSED, "2 micro-batches and 0 copies", why)
    said = json.loads(expect(count, "whole, JSON", ["plan", "--profile", plan, "--cluster", "h100", "--batch", "4", "--auto=latency", "--json"], DONE))
    count.check("whole, JSON", None if why in said["search"]["whole"] and said["microbatches"] == 1 else str(said)[:300])


def two_kinds(count, folder):
    """The first of three devices is slow: each stage is on the device that the strategy says, which its cap tells."""
    cluster = os.path.join(folder, "kinds.json")
    devices = [{"kind": "cpu", "alignment": 64, "flops": rate, "bandwidth": 1e10, "launch_ns": 300, "threads": 1, "memory_bytes": 10**9 + d}
               for d, rate in enumerate([5e9, 2e10, 2e10])]
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump({"format": "onnx-pipe cluster 1", "devices": devices, "tiers": [{"latency_ns": 300, "bandwidth": 1e10}]}, file)
    orders = set()
    for more in (["--stages", "3"], ["--stages", "2", "--replicas", "1", "--tensor", "1"]):
        asked = ["plan", DEMO, "--auto", "--cluster", cluster, "--bind", "batch=8,seq=16", *more]
        said = [int(d) for d in re.findall(r"(?m)^stage \d+ +layers .* on (\d+):", expect(count, "two kinds", asked, DONE))]
        plan = json.loads(expect(count, "two kinds", [*asked, "--json"], DONE))
        found = [plan["devices"][stage["rank"]]["memory_bytes"] - 10**9 for stage in plan["stages"]]
        count.check(f"two kinds, {more}", None if said == found and len(said) > 1 else f"the strategy says devices {said}, the plan has {found}")
        orders.add(tuple(said))
    played_where_they_stand(count, folder)
    count.check("not as they stand", None if any(list(order) != sorted(order) or 0 not in order for order in orders) else str(orders))


def played_where_they_stand(count, folder):
    """A plan is played on the devices that auto chose: of the model, and of its file. The first device is slow and far from the others."""
    path, cluster = os.path.join(folder, "placed.json"), os.path.join(folder, "far.json")
    nodes = [{"devices": [{"kind": "cpu", "alignment": 64, "flops": rate, "bandwidth": rate / 4, "count": n, "domain": node}]}
             for node, (rate, n) in enumerate([(1e10, 1), (4e10, 2)])]
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump({"format": "onnx-pipe cluster 1", "nodes": nodes, "tiers": [{"name": "in", "devices": 2, "bandwidth": 1e10, "latency_ns": 1000},
                                                                             {"name": "net", "bandwidth": 1e7, "latency_ns": 20000}]}, file)
    asked = [DEMO, "--auto", "--bind", "batch=8,seq=16", "--stages", "2", "--replicas", "1", "--cluster", cluster]
    expect(count, "placed", ["plan", *asked, "-o", path], DONE)
    with open(path, encoding="utf-8") as file:
        plan = json.load(file)
    count.check("placed", None if sorted(plan.get("cluster_devices", [])) == [1, 2] else str(plan.get("cluster_devices")))

    def played(name, *arguments):
        return json.loads(expect(count, name, ["simulate", *arguments, "--json"], DONE))["step_ns"]
    by_file = played("its file", path, "--cluster", cluster)
    count.check("model and file", None if played("the model", *asked) == by_file else "they differ")
    for where, text in (([0, 9999], "not a number from 0"), ([0], "1 entries for 2 ranks"), ("x", "cluster_devices"), (None, "")):
        with open(path, "w", encoding="utf-8") as file:
            json.dump({key: value for key, value in {**plan, "cluster_devices": where}.items() if value is not None}, file)
        if where is not None:
            expect(count, f"devices {where}", ["simulate", path, "--cluster", cluster], REFUSED, text)
    first = played("on the first ones", path, "--cluster", cluster)
    count.check("far", None if first > 1.5 * by_file else f"{first} on the first devices, {by_file} on its own")


def described(count, folder):
    """Models and machines that are not there: the strategy is the file."""
    a, b = os.path.join(folder, "a.json"), os.path.join(folder, "b.json")
    text = expect(count, "described", ["plan", *ARCH, "--auto", "-o", a], DONE, "bounded away", "gap", "\n10  ")
    with open(a, encoding="utf-8") as file:
        made = json.load(file)
    best = made["search"]["ranked"][0]
    count.check("its file", None if made["format"] == "onnx-pipe strategy 1" and best["reason"] is None and best["strategy"]["schedule"] ==
                made["schedule"] and len(made["search"]["ranked"]) == 10 and made["search"]["stopped"] in ("no", "work") else str(made["search"])[:400])
    count.check("ranked", None if all(x["step_ns"] >= best["step_ns"] and x["reason"] for x in made["search"]["ranked"][1:]) else text)
    expect(count, "hypothetical", ["plan", *ARCH, "--auto", "--hypothetical", "-o", b], DONE, "planner   auto")
    with open(b, encoding="utf-8") as file:
        wider = json.load(file)
    count.check("never slower", None if wider["step_ns"] <= made["step_ns"] * (1 + 1e-9) else f"{wider['step_ns']} > {made['step_ns']}")
    expect(count, "explain", ["plan", "explain", a, b], DONE, "predicted to be")
    played = json.loads(expect(count, "played", ["simulate", *ARCH, "--auto", "--json"], DONE))
    count.check("as predicted", None if abs(played["step_ns"] / made["step_ns"] - 1) < 1e-9 else f"{played['step_ns']}, said {made['step_ns']}")
    request = expect(count, "a request", ["plan", *ARCH, "--auto=latency", "--json"], DONE)
    count.check("a request", None if json.loads(request)["step_ns"] < made["step_ns"] else "a request takes as long as a step")
    expect(count, "no layers", ["simulate", a, "--cluster", "h100"], REFUSED, "a planner's answer", "--arch or --profile")


def nothing_fits(count, folder):
    """The missing bytes, and a cap that is enough then."""
    cluster = os.path.join(folder, "small.json")

    def write(memory):
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"format": "onnx-pipe cluster 1", "devices": [{"kind": "cpu", "count": 2, "alignment": 64, "flops": 1e10, "bandwidth": 1e10,
                       "threads": 1, "memory_bytes": memory}], "tiers": [{"latency_ns": 500, "bandwidth": 8e9}]}, file)

    small = ["plan", *ARCH[:2], "--cluster", cluster, "--batch", "8", "--auto"]
    write(10**8)
    result = run(*small)
    found = re.search(r"no plan fits 100000000 bytes \(95.4 MiB\) on each of 2 devices: the one that needs least takes (\d+) bytes", result.err)
    count.check("bytes", None if result.status == REFUSED and found else result.err)
    if found:
        write(int(found[1]))
        expect(count, "as many do", small, DONE, "planner   auto")
    changes(count, small, write)
    unequal_caps(count, small, cluster)
    write(10**12)
    for more, text in ((["--microbatches", "3", "--replicas", "2"], "3 micro-batches cannot be shared by 2 pipelines: 2, or 4, can"),
                       (["--stages", "99"], "99 stages of 8 layers: at most one for each layer"),
                       (["--ranks", "5"], "planner 'auto': 5 ranks on 2 devices"),
                       (["--schedule", "2bw"], "its weights are late"),
                       (["--auto=memory", "--within", "0.001"], "which is the smallest limit that helps")):
        expect(count, text, [*small, *more], REFUSED, text)
    bert = ["plan", "--arch", "bert:layers=4,hidden=64,heads=4,vocab=128,seq=32", "--cluster", cluster, "--batch", "8", "--auto"]
    expect(count, "causality", [*bert, "--schedule", "terapipe:slices=2"], REFUSED, "no token depends on later ones")
    exact_bytes(count)


def unequal_caps(count, small, cluster):
    """Each device has a cap of its own: how far the nearest plan is from these, on which device; as much more is enough."""
    def write(*caps):
        with open(cluster, "w", encoding="utf-8") as file:
            json.dump({"format": "onnx-pipe cluster 1", "devices": [{"kind": "cpu", "alignment": 64, "flops": 1e10, "bandwidth": 1e10, "threads": 1,
                       "memory_bytes": cap} for cap in caps], "tiers": [{"latency_ns": 500, "bandwidth": 8e9}]}, file)

    write(10**12, 10**8)
    expect(count, "one is large", small, DONE)
    for caps in ((4 * 10**8, 10**8), (10**8, 4 * 10**8), (4 * 10**8, 1)):
        write(*caps)
        out = run(*small)
        said = re.search(r"takes (\d+) bytes [^,]*on device (\d), whose cap is (\d+) bytes?[^,]*, (\d+) bytes? [^;]*more", out.err)
        good = out.status == REFUSED and said and int(said[3]) == caps[int(said[2])] and int(said[1]) == int(said[3]) + int(said[4])
        count.check(f"caps {caps}", None if good else out.err)
        if good:
            alone = "a cap of that on it helps" in out.err
            write(*(cap + (int(said[4]) if not alone or i == int(said[2]) else 0) for i, cap in enumerate(caps)))
            expect(count, f"caps {caps}, then", small, DONE)


def changes(count, small, write):
    """A change is offered that leads to a plan under the caps that are there, or it is said that none does."""
    write(10**12)
    def least(*more):
        return int(json.loads(expect(count, "needs", [*small, "--auto=memory", *more, "--json"], DONE))["search"]["ranked"][0]["bytes"])
    free, whole, wide = least(), least("--microbatches", "1"), least("--hypothetical")
    count.check("these differ", None if wide < free < whole else f"{wide}, {free}, {whole} bytes")
    write((free + whole) // 2)
    expect(count, "micro-batches", [*small, "--microbatches", "1"], REFUSED, f"takes {whole} bytes", "caps of that help, and another number of micro-batches does")
    write((wide + free) // 2)
    expect(count, "hypothetical", small, REFUSED, f"takes {free} bytes", "and tensor width and sharded optimizers (hypothetical) do")
    expect(count, "hypothetical, then", [*small, "--hypothetical"], DONE)
    write(wide // 2)
    out = run(*small)
    count.check("none does", None if out.status == REFUSED and "and no other change of what was asked for does" in out.err else out.err)


def exact_bytes(count):
    """A cap below what the ranks of the best one's plan take together, workspace and all: another one is taken, which fits."""
    plan = ["plan", DEMO, "--train", *TEXT, *LOSS, "--auto", *TWO, "--json"]
    most = sum(m["total_bytes"] for m in json.loads(expect(count, "exact bytes", plan, DONE))["memory"])
    for share in (0.99, 0.8):
        cap = int(most * share)
        found = [m["total_bytes"] for m in json.loads(expect(count, f"{share} of them", [*plan, "--memory", str(cap)], DONE) or "{}").get("memory", [])]
        count.check(f"{share} of them", None if found and sum(found) <= cap else f"{found} bytes under a cap of {cap}")
    advice(count, plan)
    expect(count, "in use", ["train", DEMO, *TEXT, *LOSS, *STEPS, "--auto", *TWO, "--memory", str(cap), "--reference"], DONE, "bit-equal")


def advice(count, plan):
    """Bytes of layers are said to be that; of the other plans the message says what the nearest plan's ranks need together, so that
    caps that follow it soon fit."""
    out = run(*plan, "--memory", "1MiB")
    said = re.search(r"needs least takes (\d+) bytes", out.err)  # on one of two ranks
    count.check("of layers", None if said and "a plan also has workspace and messages" in out.err else out.err)
    needs = [2 * int(said[1])] if said else []
    while needs and len(needs) < 8:
        out = run(*plan, "--memory", str(needs[-1]))
        said = re.search(r"; (\d+) bytes\), which exceeds", out.err)
        if not said:
            break
        needs.append(int(said[1]))
    near = len(needs) > 1 and max(needs[1:]) < 1.1 * needs[1]
    count.check("advice", None if near and out.status == DONE else f"{needs}: {out.err[-300:]}")


if __name__ == "__main__":
    sys.exit(main())
