#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""profile, planners, plans made of strategies, comparisons: a described model is the exported one, what a planner
says is what is run, to the bit; refusals say what is missing."""
import json
import os
import sys
import tempfile

from command import DATA, DONE, REFUSED, SANITIZED, SOURCE, USAGE, Count, need_command, run

GPT = os.path.join(DATA, "gpt_8block", "model.onnx")
LLAMA = os.path.join(DATA, "llama_8block", "model.onnx")
ENCODER = os.path.join(DATA, "encoder", "model.onnx")
DEMO = os.path.join(DATA, "demo", "model.onnx")
LOSS = ["--train", "--loss", "cross-entropy:logits=logits,labels=labels"]
ARCH = "gpt:layers=24,hidden=2048,heads=16,vocab=51200,seq=2048,type=fp16"
BATCH = 64  # so many samples that tables that all blocks read do not count

# model, its description, output that is judged, fields that blocks have alike
EXPORTED = [
    (GPT, "gpt:layers=8,hidden=24,heads=4,vocab=344,seq=8,positions=64", "logits"),
    (DEMO, "gpt:layers=8,hidden=56,heads=7,vocab=256,seq=8,positions=64", "logits"),
    (LLAMA, "llama:layers=8,hidden=24,heads=4,kv-heads=2,ffn=48,vocab=256,seq=8", "logits"),
    (ENCODER, "bert:layers=2,hidden=16,heads=2,vocab=528,seq=8,positions=64", "scores"),
]
FIELDS = ["flops", "param_bytes", "stash_bytes", "cut_bytes", "output_bytes"]
LINE = {
    "format": "onnx-pipe cluster 1",
    "nodes": 1,
    "devices": [{"kind": "x", "count": 4, "alignment": 64, "flops": 1e9, "bandwidth": 1e10}],
    "tiers": [{"name": "wire", "latency_ns": 1000, "bandwidth": 1e9}],
}


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        exported(count)
        files(count, folder)
        planned(count, folder)
        hypothetical(count, folder)
        compared(count, folder)
        updates(count, folder)
        refusals(count, folder)
        guide(count, folder)
    return count.finish()


def guide(count, folder):
    """The commands of the guide, one after the other, as they stand there; and no profile is planned for another
    machine than it was made for."""
    with open(os.path.join(SOURCE, "abi", "guide", "planners.md"), encoding="utf-8") as file:
        lines = [line.split()[1:] for line in file.read().replace("\\\n", "").splitlines() if line.startswith("prefix/bin/onnx-pipe ")]
    machines = {}
    for line in lines:
        words = [GPT if word == "model.onnx" else word for word in line]
        words = ["text:" + os.path.join(DATA, "text", "ferry.txt") if word == "text:ferry.txt" else word for word in words]
        words = [os.path.join(folder, word) if word.endswith(".json") else word for word in words]
        if SANITIZED and "--arch" in line and "--auto" in line:
            continue  # minutes
        expect(count, "guide: " + " ".join(line), words, DONE)
        written = line[line.index("-o") + 1] if "-o" in line else None
        named = next((word.split("=")[1] for word in line if word.startswith("--cluster=")), "here")
        if line[0] == "profile":
            machines[written] = named
        if line[0] == "plan" and "--profile" in line:
            made, cluster = machines[line[line.index("--profile") + 1]], line[line.index("--cluster") + 1]
            same = made == machines.get(cluster, cluster)
            count.check("guide: one machine", None if same else f"a profile of {made} planned for {cluster}")
    count.check("guide: commands", None if len(lines) > 10 else str(len(lines)))


def expect(count, name, arguments, status, text=""):
    result = run(*arguments)
    good = result.status == status and text in result.out + result.err
    wrong = f"{result.status}, not {status} with '{text}': {(result.err or result.out)[-300:]}"
    count.check(name, result.broken(60, 2048) or (None if good else wrong))
    return result.out


def profile_of(count, name, arguments):
    return json.loads(expect(count, name, ["profile", *arguments, "--json"], DONE) or "{}")


def exported(count):
    """Flops, parameters, what is kept and what crosses, of every block within 1 % of the graph's."""
    for model, arch, logits in EXPORTED:
        what = os.path.basename(os.path.dirname(model))
        graph = profile_of(count, what, [model, "--train", "--loss", f"cross-entropy:logits={logits},labels=judged",
                                         "--bind", "seq=8", "--samples", str(BATCH)])
        shape = profile_of(count, what + ", described", ["--arch", arch, "--samples", str(BATCH)])
        blocks = len(shape["layers"]) - 2
        found, wanted = graph["sizes"][0]["costs"], shape["sizes"][0]["costs"]
        flops = [sum(c["flops"] for c in side) for side in (found, wanted)]
        count.check(f"{what}: all flops", None if abs(flops[0] / flops[1] - 1) <= 0.01 else str(flops))
        if blocks < 3:
            continue  # its first block has nodes of its own, and is not told from what stands before
        first = next((i for i in range(len(found) - blocks + 1)
                      if all(abs(c["param_bytes"] / wanted[1]["param_bytes"] - 1) < 0.01 for c in found[i : i + blocks])), None)
        count.check(f"{what}: blocks", None if first is not None else f"no {blocks} blocks among {graph['layers']}")
        for field in FIELDS if first is not None else []:
            off = max(abs(found[first + b][field] / wanted[1 + b][field] - 1) for b in range(blocks))
            count.check(f"{what}: {field}", None if off <= 0.01 else f"off by {off:.4f} in a block")


def files(count, folder):
    """Profiles and this machine, written and used."""
    path, machine = os.path.join(folder, "profile.json"), os.path.join(folder, "here.json")
    expect(count, "written", ["profile", GPT, *LOSS, "--bind", "seq=8,batch=4", "-o", path], DONE, "add_7")
    with open(path, encoding="utf-8") as file:
        sizes = [size["samples"] for size in json.load(file)["sizes"]]
    count.check("sizes", None if sizes == [1, 4] else str(sizes))
    expect(count, "measured", ["profile", DEMO, "--samples", "2"], DONE, "micro-batches of 2")
    ways = {name: profile_of(count, name, [DEMO, "--samples", "2", *more])["sizes"]
            for name, more in (("rates", ["--cost", "rates"]), ("rates again", ["--cost", "rates"]), ("alone", []), ("of a cluster", ["--cluster=h100"]),
                               ("of a cluster by rates", ["--cluster=h100", "--cost", "rates"]))}
    count.check("rates are no measurement", None if ways["rates"] == ways["rates again"] != ways["alone"] else str(ways))
    count.check("nor are those of a cluster", None if ways["of a cluster"] == ways["of a cluster by rates"] else str(ways))
    expect(count, "nodes", ["profile", DEMO, "--nodes", "--samples", "1"], DONE, "124 layers")
    expect(count, "this machine", ["profile", "--cluster", "--device", "cpu,threads=1", "--device", "cpu,threads=1",
                                   "-o", machine], DONE)
    with open(machine, encoding="utf-8") as file:
        here = json.load(file)
    good = here["devices"][0]["count"] == 2 and len(here["devices"][0]["rates"]) == 3 and here["tiers"][0]["bandwidth"] > 0
    count.check("its numbers", None if good else json.dumps(here))
    expect(count, "by profile, on it", ["plan", "--profile", path, "--planner", "pipedream", "--cluster", machine,
                                        "--batch", "8"], DONE, "planner   pipedream")


def planned(count, folder):
    """Plans of planners run, with the bits of their reference."""
    cluster, plan = os.path.join(folder, "line.json"), os.path.join(folder, "plan.json")
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump({**LINE, "devices": [{**LINE["devices"][0], "kind": "cpu", "alignment": 64, "flags": ["host-memory", "synchronous"],
                                        "threads": 1}]}, file)
    data = ["--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--batch", "8", "--steps", "2", "--optimizer", "sgd:lr=0.1"]
    device = ["--device", "cpu,threads=1"]
    for planner, more in (("dapple", ["--rows", "2"]), ("pipedream", ["--rows", "2"]), ("2bw", []), ("chimera", []),
                          ("megatron", [])):
        made = expect(count, planner, ["plan", DEMO, *LOSS, "--planner", planner, *device * 2, "--bind", "seq=16", "--batch", "8",
                                       *more, "--json"], USAGE if planner == "pipedream" else DONE,
                      "'schedule simulate pipedream'" if planner == "pipedream" else "")
        if planner == "pipedream":
            continue  # a schedule of the simulator alone
        want = len(json.loads(made)["devices"])
        count.check(f"{planner}: devices", None if want <= 2 else str(want))
        out = expect(count, f"train {planner}", ["train", DEMO, *data, "--bind", "seq=16", "--loss", "cross-entropy:logits=logits,labels=input_ids,shift=1",
                                                 "--planner", planner, *device * 2, *more, "--reference"], DONE, "planner   " + planner)
        count.check(f"{planner}: to the bit", None if "bit-equal" in out else out[-400:])
    expect(count, "run", ["run", DEMO, "--planner", "megatron", *device * 2, "--bind", "batch=4,seq=8", "--reference"], DONE, "planner   megatron")
    loss = ["--loss", "cross-entropy:logits=logits,labels=input_ids,shift=1"]
    expect(count, "written", ["plan", DEMO, "--train", *data[:-4], *loss, "--bind", "seq=16", "--planner", "chimera", *device * 2,
                              "-o", plan], DONE)
    expect(count, "and executed", ["train", DEMO, *data[:-2], *loss, "--bind", "seq=16", "--plan", plan, "--reference"], DONE, "bit-equal")
    expect(count, "requests by unequal replicas", ["plan", GPT, "--planner", "dapple", "--cluster", "config-a", "--bind", "batch=64,seq=32", "--rows", "32"],
           DONE, "replicas of the stages, which cut micro-batches between them")
    expect(count, "played", ["simulate", DEMO, *LOSS, "--planner", "chimera", "--cluster", cluster, "--bind", "seq=16", "--batch", "8"], DONE, "bubble")


def hypothetical(count, folder):
    a, b = os.path.join(folder, "a.json"), os.path.join(folder, "b.json")
    for planner, path in (("megatron", a), ("2bw", b)):
        expect(count, planner, ["plan", "--arch", ARCH, "--planner", planner, "--cluster", "p3.16xlarge:nodes=4", "--batch", "512", "-o", path], DONE,
               "predicted")
    with open(a, encoding="utf-8") as file:
        count.check("a file", None if json.load(file)["format"] == "onnx-pipe strategy 1" else "no strategy")
    expect(count, "explain", ["plan", "explain", a, b], DONE, "planner")
    both = json.loads(expect(count, "explain", ["plan", "explain", a, b, "--json"], DONE))
    count.check("what differs", None if any(d["what"] == "planner" for d in both["differs"]) else str(both["differs"]))
    step = next(c for c in both["costs"] if c["what"] == "step_ns")
    count.check("what it costs", None if step["a"] > 0 and step["b"] > 0 else str(step))
    played = json.loads(expect(count, "play", ["simulate", "--arch", ARCH, "--planner", "megatron", "--cluster", "p3.16xlarge:nodes=4", "--batch",
                                               "512", "--json"], DONE))
    count.check("utilisation", None if 0 < played["utilisation"] <= 1 and played["devices"] == 32 else str(played["utilisation"]))


def compared(count, folder):
    """Mini-batches of other sizes are compared by the sample; requests and training, other models and other shapes are not; a stage
    that one of both lacks is none of 0 ms."""
    small = "gpt:layers=4,hidden=256,heads=4,vocab=1000,seq=64"
    files = {name: os.path.join(folder, name + ".json") for name in ("few", "many", "request", "three", "other", "a", "b", "c")}
    for name, more in (("few", ["--batch", "4", "--stages", "2"]), ("many", ["--batch", "16", "--stages", "2"]), ("three", ["--batch", "4", "--stages", "3"]),
                       ("request", ["--batch", "4", "--stages", "2", "--auto=latency"])):
        expect(count, name, ["plan", "--arch", small, "--auto", "--schedule", "gpipe", "--cluster", "config-a", *more, "-o", files[name]], DONE)
    expect(count, "other", ["plan", "--arch", small.replace("4,", "5,", 1), "--auto", "--schedule", "gpipe", "--stages", "2", "--cluster", "config-a", "--batch",
                            "4", "-o", files["other"]], DONE)
    for name, more in (("a", "batch=4,seq=8"), ("b", "batch=4,seq=16"), ("c", "batch=2,seq=8")):
        expect(count, name, ["plan", DEMO, "--bind", more, "--stages", "2", "-o", files[name]], DONE)
    for one, two, *texts in (("few", "many", "* samples", "many.json is predicted to be ", "times as fast per sample\n"),
                             ("few", "three", "  samples ", "times as fast\n", "  stage 2    forward (ms) -  "),
                             ("few", "request", "* kind", "no prediction which is faster: one is for requests, one for training"),
                             ("few", "other", "* model", "no prediction which is faster: they are of different models or shapes"),
                             ("a", "b", "* model", "no prediction which is faster: they are of different models or shapes"),
                             ("a", "c", "* samples", "times as fast per sample\n"), ("a", "a", "  model", "times as fast\n")):
        out = expect(count, f"{one} and {two}", ["plan", "explain", files[one], files[two]], DONE)
        count.check(f"{one} and {two}: said", None if all(text in out for text in texts) else out)


def updates(count, folder):
    """One strategy, of a paper's planner and of auto, takes as long when it is played: updates read and write all that belongs to weights."""
    cluster, profile = os.path.join(folder, "pair.json"), os.path.join(folder, "two.json")
    layer = {"flops": 0, "forward_ns": 1e6, "input_ns": 1e6, "weight_ns": 1e6, "output_bytes": 1000, "cut_bytes": 1000, "stash_bytes": 1000,
             "param_bytes": 400000000, "width_share": 0, "width_bytes": 0}
    with open(profile, "w", encoding="utf-8") as file:
        json.dump({"format": "onnx-pipe profile 1", "name": "two", "tokens": 0, "weight_bytes": 4, "halves": True, "layers": ["l0", "l1"],
                   "sizes": [{"samples": 1, "costs": [layer, {**layer, "output_bytes": 0, "cut_bytes": 0}]}]}, file)
    with open(cluster, "w", encoding="utf-8") as file:
        json.dump({**LINE, "devices": [{"kind": "x", "count": 2, "alignment": 64, "flops": 1e12, "bandwidth": 5e11}]}, file)
    same = ["--profile", profile, "--cluster", cluster, "--batch", "4", "--json"]
    took = [json.loads(expect(count, "updates", ["simulate", *same, *more], DONE))["step_ns"]
            for more in (["--planner", "dapple"], ["--auto", "--schedule", "1f1b:policy=pa", "--stages", "2", "--microbatches", "4", "--recompute", "none"])]
    alone = 4 * 400000000 * 2 / 5e11 * 1e9  # ns of an update
    count.check("updates", None if took[0] == took[1] > 5 * 3e6 + alone else f"{took} ns, and an update takes {alone}")


def refusals(count, folder):
    path = os.path.join(folder, "broken.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"format": "onnx-pipe plan 3"}')
    expect(count, "nobody", ["plan", DEMO, "--planner", "nobody", "--cluster", "h100"], USAGE, "dapple, pipedream")
    shape = ["--arch", "gpt:layers=4,hidden=64,heads=4,vocab=128,seq=32", "--cluster", "config-a", "--batch", "4"]
    for own, more in (("pipedream", ["--planner", "pipedream"]), ("pipedream", ["--auto", "--schedule", "pipedream"]), ("gems", ["--auto", "--schedule", "gems"])):
        expect(count, "for comparison only", ["simulate", *shape, *more], USAGE,
               f"schedule '{own}' is for comparison only, with 'schedule simulate {own}'")
    expect(count, "as said", ["schedule", "simulate", "pipedream", "--stages", "3", "--microbatches", "3"], DONE)
    expect(count, "searched for", ["plan", *shape, "--auto", "--schedule", "search"], USAGE, "schedule 'search' improves the order of given stages")
    expect(count, "no name of anybody", ["plan", *shape, "--auto", "--schedule", "nobody"], USAGE, "set OPIPE_PLUGIN_PATH")
    expect(count, "two models", ["plan", DEMO, "--arch", ARCH, "--planner", "2bw"], USAGE, "--arch replaces the model")
    expect(count, "a wrong one", ["plan", "--arch", "gpt:layers=2", "--planner", "2bw", "--cluster", "h100"], USAGE, "needs hidden=")
    expect(count, "decided", ["plan", DEMO, "--planner", "2bw", "--cut", "x", "--cluster", "h100"], USAGE, "--cut: planner '2bw' decides that")
    expect(count, "too small", ["plan", "--arch", "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048", "--planner", "megatron", "--cluster",
                                "config-a", "--batch", "16"], REFUSED, "fits")
    expect(count, "one file", ["plan", "explain", path], USAGE)
    expect(count, "no stages", ["plan", "explain", path, path], REFUSED, "stages")
    expect(count, "no profile", ["plan", "--profile", path, "--planner", "2bw", "--cluster", "h100"], REFUSED, "onnx-pipe profile 1")
    expect(count, "nothing", ["profile"], USAGE, "is needed")
    expect(count, "samples", ["profile", DEMO, "--samples", "4,2"], USAGE, "rising")
    expect(count, "no batch", ["profile", "--arch", ARCH, "--samples", "0"], USAGE, "rising")


if __name__ == "__main__":
    sys.exit(main())
