#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Plans for devices that are not there: made from a cluster file, read, proven, simulated, described; files that are
refused by name; and plans whose decisions do not depend on the kernels of the machine that made them."""
import copy
import json
import os
import re
import tempfile

from command import DATA, DONE, REFUSED, USAGE, Count, need_command, run

MODEL = os.path.join(DATA, "demo", "model.onnx")
TEXT = os.path.join(DATA, "text", "ferry.txt")
TRAIN = ["--train", "--data", "text:" + TEXT, "--loss", "cross-entropy:logits=logits,labels=labels,shift=1",
         "--batch", "32"]
GIB = 1 << 30
HALL = {
    "format": "onnx-pipe cluster 1",
    "devices": [
        {"name": "left", "kind": "hypothetical", "count": 32, "index": 0, "memory_bytes": 80 * GIB, "flops": 3e14,
         "bandwidth": 2e12, "launch_ns": 3000, "alignment": 256, "domain": 0},
        {"name": "right", "kind": "hypothetical", "count": 32, "index": 32, "memory_bytes": 40 * GIB, "flops": 1e14,
         "bandwidth": 1e12, "launch_ns": 3000, "threads": 4, "alignment": 512, "domain": 1, "options": "slow=1"},
    ],
    "links": [{"transport": "imagined", "rule": "tag", "latency_ns": 2000, "bandwidth": 2.5e10}],
}
# As backend cpu answers, for one thread.
HERE = {
    "format": "onnx-pipe cluster 1",
    "devices": [{"kind": "cpu", "count": 3, "flops": 80e9, "bandwidth": 10e9, "launch_ns": 300, "threads": 1,
                 "alignment": 64, "flags": ["host-memory", "synchronous"]}],
}


def changed(path, value, base=None):
    """A copy of a cluster with one member set, or taken out where value is None."""
    out = copy.deepcopy(HALL if base is None else base)
    at = out
    for key in path[:-1]:
        at = at[key]
    if value is None:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return out


WRONG = [
    (changed(["format"], "onnx-pipe cluster 2"), "\"format\" is 'onnx-pipe cluster 2', this build reads"),
    (changed(["format"], None), "\"format\" must be a string"),
    (changed(["nodes"], []), "it has both \"devices\" and \"nodes\" with devices of their own"),
    (changed(["racks"], 1), "\"racks\" is no field of it; these are: format, name, summary, nodes, devices, links"),
    (changed(["devices"], []), "\"devices\" is empty"),
    (changed(["devices"], {}), "\"devices\" must be an array"),
    (changed(["devices", 1], 7), "devices[1] must be an object"),
    (changed(["devices", 1, "kind"], None), "devices[1]: \"kind\" is missing"),
    (changed(["devices", 1, "flopz"], 1), "devices[1]: \"flopz\" is no field of it; these are: name, kind, count"),
    (changed(["devices", 1, "flops"], "fast"), "devices[1]: \"flops\" must be a number"),
    (changed(["devices", 1, "flops"], -1e14), "devices[1]: \"flops\" is -1e+14; it must be 0, or from 1 to 1e+30"),
    (changed(["devices", 1, "bandwidth"], 0.5), "devices[1]: \"bandwidth\" is 0.5; it must be 0, or from 1 to 1e+30"),
    (changed(["devices", 1, "launch_ns"], 1e16), "devices[1]: \"launch_ns\" is 1e+16; it must be 0, or from 0 to 1e+15"),
    (changed(["devices", 1, "alignment"], 48), "devices[1]: \"alignment\" is 48; it must be a power of two from 1 to 16777216"),
    (changed(["devices", 1, "alignment"], None), "devices[1]: \"alignment\" must be an integer from 0 to"),
    (changed(["devices", 0, "count"], 0), "devices[0]: \"count\" is 0 after 0 devices; there must be 1 to 4096 in all"),
    (changed(["devices", 1, "count"], 4096), "devices[1]: \"count\" is 4096 after 32 devices; there must be 1 to 4096 in all"),
    (changed(["devices", 1, "count"], 4097), "devices[1]: \"count\" must be an integer from 0 to 4096"),
    (changed(["devices", 1, "memory_bytes"], -1), "devices[1]: \"memory_bytes\" must be an integer from 0 to"),
    (changed(["devices", 1, "flags"], ["sync"]), "devices[1]: \"flags\" holds 'sync'; known flags are host-memory, synchronous, emulated, alone and hands-on"),
    (changed(["devices", 1, "flags"], "synchronous"), "devices[1]: \"flags\" must be an array"),
    (changed(["links"], []), "\"links\" has 0 entries; it must have one, for all devices"),
    (changed(["links", 0, "transport"], None), "links[0]: \"transport\" is missing"),
    (changed(["links", 0, "rule"], "fifo"), "links[0]: \"rule\" is 'fifo'; known rules are tag, stream, edge, pair, blocking and"),
    (changed(["links", 0, "latency_ns"], 1e16), "links[0]: \"latency_ns\" is 1e+16; it must be 0, or from 0 to 1e+15"),
    (changed(["links", 0, "bandwidth"], 2e18), "links[0]: \"bandwidth\" is 2e+18; it must be 0, or from 1 to 1e+18"),
    (changed(["links", 0, "flags"], ["near"]), "links[0]: \"flags\" holds 'near'; known flags are direct, reduces, emulated, collectives, queued, machines, unordered and scattered"),
    (changed(["links", 0, "max_ranks"], 8), "transport 'imagined' supports at most 8 ranks, the plan has 64"),
    (changed(["devices", 1, "memory_bytes"], 1000), "rank 32 (stage 32) needs "),
]
WRONG_TEXTS = [
    ("", "is not valid JSON"),
    ("[]", "is not a JSON object"),
    ("[" * 40, "nests deeper than 32"),
    ('{"format": 1, "format": 2}', "is not valid JSON"),
]


class Cases:
    def __init__(self, count, folder):
        self.count, self.folder = count, folder

    def write(self, name, content):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def expect(self, name, arguments, status, text=""):
        result = run(*arguments)
        good = result.status == status and text in result.out + result.err
        wrong = f"{result.status}, not {status} with '{text}': {(result.err or result.out)[-300:]}"
        self.count.check(name, result.broken(30, 1024) or (None if good else wrong))
        return result.out

    def holds(self, name, condition, problem):
        self.count.check(name, None if condition else problem)


def check_plan(c, name, plan, arguments, n_ranks):
    """The plan file for absent devices is complete, and marked as estimated."""
    with open(plan, encoding="utf-8") as file:
        text = file.read()
    made = json.loads(text)
    memory = made["memory"]
    c.holds(name, len(made["devices"]) == n_ranks, f"{len(made['devices'])} devices")
    c.holds(name, all(m.get("estimated") for m in memory), "a rank's bytes are not marked as estimates")
    c.holds(name, sum(m["params_bytes"] for m in memory) >= 1299728, "less parameters than the model has")
    c.holds(name, made["request_ns"] > 0 and made["interval_ns"] > 0, "no simulated times")
    c.holds(name, re.fullmatch("[0-9a-f]{32}", made["hash"]), made["hash"])
    again = c.expect(name + ", read", ["plan", MODEL, *arguments, "--plan", plan, "--json"], DONE)
    c.holds(name + ", read", again == text, "what was read is written otherwise")
    c.expect(name + ", described", ["plan", MODEL, *arguments, "--plan", plan], DONE,
             f"bytes of {n_ranks} ranks are estimates")
    return made


def absent_devices(c, cluster):
    plan = os.path.join(c.folder, "plan.json")
    forward = [("gpipe", 64, []), ("gpipe", 48, ["--stages", "48"]), ("1f1b", 64, []),
               ("sequential", 64, []), ("looped-bfs:chunks=2", 32, ["--ranks", "32"]),
               ("interleaved:chunks=2", 16, ["--ranks", "16"])]
    for schedule, n_ranks, more in forward:
        name = f"{schedule} on {n_ranks}"
        c.expect(name, ["plan", MODEL, "--cluster", cluster, "--schedule", schedule, "--bind", "batch=4",
                        "--microbatches", "4", *more, "-o", plan], DONE, f"on {n_ranks} ranks")
        made = check_plan(c, name, plan, [], n_ranks)
        rank = min(n_ranks, 64) - 1
        c.holds(name, made["devices"][rank]["index"] == rank, "devices are not taken in order")
    c.expect("run", ["run", MODEL, "--plan", plan], REFUSED, "there is no backend 'hypothetical'")
    for schedule, n_ranks in [("gpipe", 64), ("1f1b", 64), ("zb-h1", 32), ("interleaved:chunks=2", 16), ("zbv", 16),
                              ("chimera", 16), ("2bw", 16)]:
        name = f"training, {schedule} on {n_ranks}"
        c.expect(name, ["plan", MODEL, *TRAIN, "--cluster", cluster, "--schedule", schedule, "--ranks", str(n_ranks),
                        "--microbatches", "16", "-o", plan], DONE, f"on {n_ranks} ranks")
        made = check_plan(c, name, plan, TRAIN[:5], n_ranks)
        sums = [sum(m[part] for m in made["memory"]) for part in ("gradient_bytes", "optimizer_bytes", "stash_bytes")]
        c.holds(name, all(sums), f"gradients, optimizer, stashes: {sums}")


def a_rate_decides_the_cut(c):
    """The slower half of the devices gets less work."""
    devices = [dict(HALL["devices"][0], count=1, launch_ns=0, flops=4e9, bandwidth=0),
               dict(HALL["devices"][1], count=1, launch_ns=0, flops=1e9, bandwidth=0, index=0)]
    cluster = c.write("two.json", dict(HALL, devices=devices))
    made = json.loads(c.expect("two speeds", ["plan", MODEL, "--cluster", cluster, "--ranks", "2", "--json"], DONE))
    nodes = [len(stage["nodes"]) for stage in made["stages"]]
    c.holds("two speeds", len(nodes) == 2 and nodes[0] > 2 * nodes[1] > 0, f"nodes of the stages: {nodes}")
    slow = dict(HALL, devices=devices, links=[dict(HALL["links"][0], latency_ns=1e6)])
    other = json.loads(c.expect("a slow link", ["plan", MODEL, "--cluster", c.write("slow.json", slow), "--ranks", "2", "--json"], DONE))
    waits = other["request_ns"] - made["request_ns"]
    c.holds("a slow link", 0.9e6 < waits < 1.1e6, f"a request takes {waits} ns longer")
    c.holds("a slow link", other["hash"] == made["hash"], "the hash depends on a latency")


def wrong_files(c, cluster):
    for i, (content, text) in enumerate(WRONG):
        c.expect(text, ["plan", MODEL, "--cluster", c.write(f"wrong{i}.json", content), "--ranks", "64"], REFUSED, text)
    for i, (content, text) in enumerate(WRONG_TEXTS):
        path = c.write(f"text{i}.json", content)
        c.expect(text, ["plan", MODEL, "--cluster", path], REFUSED, path + " " + text)
    c.expect("no file", ["plan", MODEL, "--cluster", os.path.join(c.folder, "none.json")], USAGE, "none.json")
    c.expect("ranks", ["plan", MODEL, "--cluster", cluster, "--stages", "65"], REFUSED,
             "the cluster has 64 devices, the plan 65 ranks")
    c.expect("transport", ["plan", MODEL, "--cluster", cluster, "--ranks", "2", "--transport", "local"], REFUSED,
             "\"transport\" is 'imagined', but 'local' was asked for")
    c.expect("measured", ["plan", MODEL, "--cluster", cluster, "--ranks", "2", "--cost", "measured"], REFUSED,
             "measured costs need real devices")
    for option, value in [("device", "cpu"), ("threads", "2")]:
        c.expect(option, ["plan", MODEL, "--cluster", cluster, "--" + option, value], USAGE, f"--{option} is not allowed")


def devices_at_hand(c):
    """Described as they are: the same decisions as when they are asked; exact once a session opens."""
    plan = os.path.join(c.folder, "here.json")
    cluster = c.write("cpu.json", HERE)
    c.expect("described", ["plan", MODEL, "--cluster", cluster, "--stages", "3", "-o", plan], DONE, "estimates")
    asked = json.loads(c.expect("asked", ["plan", MODEL, "--device", "cpu", "--threads", "1", "--stages", "3", "--json"],
                                DONE))
    with open(plan, encoding="utf-8") as file:
        described = json.load(file)
    c.holds("asked", asked["hash"] == described["hash"], "a description of the same device decides otherwise")
    c.holds("asked", not any("estimated" in m for m in asked["memory"]), "what was asked is marked as an estimate")
    c.expect("run", ["run", MODEL, "--plan", plan, "--reference"], DONE, "identical to the plan's reference")
    c.expect("run", ["run", MODEL, "--cluster", cluster, "--stages", "3", "--reference"], DONE, "identical to the plan's reference")
    unlike = c.write("unlike.json", changed(["devices", 0, "alignment"], 256, HERE))
    c.expect("alignment", ["run", MODEL, "--cluster", unlike, "--stages", "3"], REFUSED,
             "rank 0 (device cpu:0): the plan aligns buffers to 256 bytes, the device to 64")
    ruled = dict(HERE, links=[{"transport": "local", "rule": "stream"}])
    c.expect("rule", ["run", MODEL, "--cluster", c.write("ruled.json", ruled), "--stages", "3"], REFUSED,
             "the plan was made for rule 'stream'")
    del described["hash"]
    described["devices"][0]["kind"] = "emulated"
    described["devices"][0]["options"] = "refuse=all"
    c.expect("options", ["run", MODEL, "--plan", c.write("options.json", described)], REFUSED, "rank 0: ")
    described["devices"][0].update(kind="cpu", options="")
    described["schedule"] = "nobodys"
    nobodys = c.write("nobodys.json", described)
    c.expect("schedule", ["plan", MODEL, "--plan", nobodys], DONE, "schedule nobodys")
    c.expect("schedule", ["run", MODEL, "--plan", nobodys, "--reference"], DONE, "identical to the plan's reference")
    exact = json.loads(c.expect("bytes", ["plan", MODEL, "--device", "cpu,mapped=0", "--stages", "1", "--threads", "1",
                                          "--json"], DONE))
    total = exact["memory"][0]["total_bytes"]
    for cap, status, text in [(total, DONE, ""), (total - 1, REFUSED, f"exceeds its cap of {total - 1} bytes ({(total - 1) / 1024**2:.1f} MiB) by 1 byte")]:
        exact["devices"][0]["memory_bytes"] = cap
        exact["memory"][0].update(params_bytes=1, activation_bytes=0, workspace_bytes=0, boundary_bytes=0, total_bytes=1)
        c.expect(f"cap {cap}", ["run", MODEL, "--plan", c.write("capped.json", exact)], status, text)


def sharing(c):
    """A tensor is made where it is read if its two ranks share a domain and the transport writes in place; others are copied."""
    cut = re.compile(r"cut (\d) -> (\d): +([\d.]+) KiB +(\S+)")
    for domains, flags in [((0, 0, 0, 0), ["direct", "reduces"]), ((0, 0, 1, 1), ["direct", "reduces"]),
                           ((0, 1, 1, 0), ["direct", "reduces"]), ((0, 1, 2, 3), ["direct", "reduces"]), ((0, 0, 1, 1), ["reduces"])]:
        name = f"domains {domains}, {', '.join(flags)}"
        hall = dict(HERE, devices=[dict(HERE["devices"][0], count=1, domain=domain) for domain in domains],
                    links=[{"transport": "local", "rule": "tag", "flags": flags}])
        cluster, plan = c.write("domains.json", hall), os.path.join(c.folder, "plan.json")
        for m in (1, 4):
            text = c.expect(name, ["plan", MODEL, "--cluster", cluster, "--ranks", "4", "--bind", "batch=4", "--microbatches", str(m), "-o", plan],
                            DONE, "on 4 ranks")
            cuts = cut.findall(text)
            apart = [float(size) for src, dst, size, _ in cuts if domains[int(src)] != domains[int(dst)] or "direct" not in flags]
            found = re.search(r"in a request: (\d+) made where they are read, (\d+) copied \(([\d.]+) KiB\)", text)
            c.holds(name, len(cuts) >= 3 and len({tensor for _, _, _, tensor in cuts}) == len(cuts), f"cuts: {cuts}")
            c.holds(name, found and (int(found[1]), int(found[2])) == (m * (len(cuts) - len(apart)), m * len(apart)),
                    f"{found and found[0]}; {len(apart)} of {len(cuts)} tensors cross domains, {m} times")
            c.holds(name, found and abs(float(found[3]) - m * sum(apart)) <= 0.05 * m * len(cuts) + 0.1, f"{found and found[0]}: {apart}")
            if "direct" in flags:
                c.expect(name, ["run", MODEL, "--plan", plan, "--requests", "8", "--reference"], DONE, "identical to the plan's reference")


def kernels(c):
    """Which kernels compute is no decision."""
    values, hashes, texts = ["reference", "portable", "avx2", "avx512"], set(), {}
    for value in values:
        arguments = ["plan", MODEL, "--device", f"cpu,mapped=0,kernels={value}", "--threads", "1", "--stages", "3"]
        result = run(*arguments, "--json")
        if "lacks" in result.err:
            c.count.skip(f"kernels={value}: {result.err.strip()}")
            continue
        c.count.check(value, result.broken(30, 1024))
        texts[value] = result.out
        hashes.add(json.loads(result.out)["hash"])
    c.holds("kernels", len(hashes) == 1 and len(texts) > 1, f"hashes: {hashes}")
    two = json.loads(c.expect("two stages", ["plan", MODEL, "--device", "cpu,mapped=0,kernels=portable", "--threads", "1",
                                             "--stages", "2", "--json"], DONE))
    most, capped = max(m["total_bytes"] for m in two["memory"]), {}
    for cap in (0.99, 0.96, 0.93):  # another cut than without, or none
        for value in texts:
            result = run("plan", MODEL, "--device", f"cpu,mapped=0,kernels={value}", "--threads", "1", "--stages", "2",
                         "--memory", str(int(cap * most)), "--json")
            capped.setdefault(cap, set()).add(json.loads(result.out)["hash"] if result.status == DONE else "refused")
    c.holds("capped", all(len(found) == 1 for found in capped.values()), f"hashes: {capped}")
    c.holds("capped", {two["hash"]} not in capped.values(), "the caps decide nothing")
    threads = json.loads(c.expect("threads", ["plan", MODEL, "--device", "cpu,mapped=0,threads=2", "--stages", "3",
                                              "--json"], DONE))
    c.holds("threads", threads["hash"] in hashes, "the hash depends on threads")
    mapped = json.loads(c.expect("mapped", ["plan", MODEL, "--device", "cpu,mapped=1", "--threads", "1", "--stages",
                                            "3", "--json"], DONE))
    c.holds("mapped", mapped["hash"] not in hashes, "the hash does not depend on an option of the backend")
    mixed = ["--device", "cpu,kernels=portable", "--device", "cpu,kernels=reference"]
    c.expect("mixed", ["run", MODEL, *mixed, "--stages", "2", "--reference"], DONE,
             "ranks 0 and 1 use different kernels of backend 'cpu': 'portable' and 'reference'")
    first = texts[min(texts)]
    for value in texts:
        read = re.sub(r"kernels=\w+", "kernels=" + value, first)
        path = c.write("kernels.json", read)
        c.expect(f"one file, kernels={value}", ["run", MODEL, "--plan", path, "--reference"], DONE,
                 "identical to the plan's reference")


def caches(c):
    """Devices with host memory append to a decoder's cache; for others every row is gathered, by more nodes."""
    model = os.path.join(DATA, "shared_buffer", "model.onnx")
    asked = ["plan", model, "--stages", "1", "--bind", "batch_size=2,sequence_length=1,past_sequence_length=80,total_sequence_length=9"]
    found = {}
    for name, more in (("here", []), ("described", ["--cluster", c.write("here.json", HERE)]), ("cuda", ["--cluster", "h100"])):
        text = c.expect(f"a cache, {name}", [*asked, *more], DONE)
        found[name] = int(re.search(r"^ +0  0 +(?:cpu|cuda):0(?: \d+ threads?)? +(\d+) ", text, re.M).group(1))
    c.holds("a cache", found["here"] == found["described"] < found["cuda"], f"nodes: {found}")


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        c = Cases(count, folder)
        cluster = c.write("hall.json", HALL)
        absent_devices(c, cluster)
        a_rate_decides_the_cut(c)
        wrong_files(c, cluster)
        devices_at_hand(c)
        sharing(c)
        kernels(c)
        caches(c)
    return count.finish()


if __name__ == "__main__":
    raise SystemExit(main())
