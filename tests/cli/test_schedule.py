#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""The schedule command: every name shows, lowers, is proven under every rule, simulates and draws;
forms and dialects convert into each other; published tables come out cell by cell; what is wrong is
refused with the right status and says where."""
import glob
import json
import os
import re
import sys
import tempfile

from command import CHECK_FAILED, DATA, DONE, REFUSED, SHARED, USAGE, Count, need_command, run

RULES = ("tag", "stream", "edge", "pair", "blocking", "grouped")
NAMES = (
    "sequential", "gpipe", "1f1b", "1f1b:policy=pb", "1f1b:eager=1", "interleaved:chunks=2",
    "looped-bfs:chunks=2", "chimera", "chimera:pipelines=4", "chimera:concat=doubling",
    "chimera:concat=halving,sync=eager-opt", "2bw", "terapipe:slices=3", "seq1f1b:slices=3",
    "zb-h1", "zb-h2", "zb-auto:memory=1.5", "zb-interleaved:chunks=2", "zbv", "zbv:order=torch",
    "v-half", "v-min", "dualpipev",
)
GPT = os.path.join(DATA, "gpt_8block", "model.onnx")
SIZE = ("--ranks", "4", "--microbatches", "8")
TABLES = {
    "gpipe": "gpipe", "loopedbfs": "looped-bfs:chunks={}",
    "interleaved1f1b": "interleaved:chunks={},warmup=torch",
    "interleaved_zb1p": "zb-interleaved:chunks={}", "zbv": "zbv:order=torch",
    "dualpipev": "dualpipev",
}


def schedule(*arguments, status=DONE):
    """Output of `schedule ...`; raises where the status is another."""
    result = run("schedule", *arguments)
    broken = result.broken(60, 2000)
    if broken or result.status != status:
        raise AssertionError(f"{' '.join(arguments)}: {broken or result.status}: {result.err.strip()[:300]}")
    return result.out if status == DONE else result.err


def every_verb(name, folder):
    path = os.path.join(folder, "order")
    for form in ("csv", "text", "json"):
        shown = schedule("show", name, *SIZE, "--format", form)
        with open(path, "w", encoding="utf-8") as file:
            file.write(shown)
        if schedule("convert", path, "--format", form) != shown:
            raise AssertionError(f"{name}: {form} reads as something else")
        if json.loads(schedule("simulate", path, "--json")) != json.loads(
            schedule("simulate", name, *SIZE, "--json")
        ):
            raise AssertionError(f"{name}: the file of its order simulates otherwise")
    for rule in RULES:
        schedule("check", name, *SIZE, "--rule", rule)
    for receives in ("early", "lazy", "lazy=3"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(schedule("lower", name, *SIZE, "--receives", receives))
        schedule("check", path, "--rule", "tag")
        schedule("check", path, "--rule", "stream")
    schedule("check", name, *SIZE, "--receives", "lazy")
    schedule("show", name, *SIZE, "--forward")
    schedule("show", name, *SIZE, "--aligned")
    if "<svg" not in schedule("draw", name, *SIZE):
        raise AssertionError(f"{name}: no picture")


def tables(_):
    found = sorted(glob.glob(os.path.join(SHARED, "oracles/schedules/torch/generated/*_compute.csv")))
    if not found:
        print("SKIP: published tables: ../shared/oracles is not there")
    for path in found:
        kind, ranks, chunks, count = re.match(
            r".*/([a-z0-9_]+?)_r(\d+)(?:_v(\d+))?_m(\d+)_compute.csv", path
        ).groups()
        shown = schedule("show", TABLES[kind].format(chunks), "--ranks", ranks, "--microbatches",
                         count, "--aligned", "--dialect", "torch")
        with open(path, encoding="utf-8") as file:
            if shown.rstrip("\n") != file.read().rstrip("\n"):
                raise AssertionError(f"{path} comes out otherwise")
        with open(path.replace("_compute", "_comms"), encoding="utf-8") as file:
            if schedule("lower", path, "--dialect", "torch").rstrip("\n") != file.read().rstrip("\n"):
                raise AssertionError(f"{path} lowers otherwise")
        for ending in ("compute", "comms", "full"):
            for rule in RULES:
                schedule("check", path.replace("_compute", "_" + ending), "--rule", rule)


def makespans(_):
    one, two = "F=1,I=1,W=1", "F=0.5,I=0.5,W=0.5"
    for name, ranks, count, cost, wanted in (
        ("1f1b", 4, 8, one, 33), ("1f1b", 8, 32, one + ",comm=0.25", 134),
        ("gpipe", 8, 32, one + ",comm=0.25", 120.5), ("chimera", 8, 8, one, 36),
        ("chimera", 4, 8, one + ",comm=0.25", 32.75), ("chimera", 8, 32, one, 126),
        ("chimera:concat=doubling", 8, 32, one, 105),
        ("interleaved:chunks=2", 4, 8, two, 28.5), ("interleaved:chunks=2", 4, 4, two, 16.5),
        ("gpipe", 2, 2, "F=1+2,I=1,W=1", 11), ("gpipe", 2, 2, "F=1+2,I=1+1,W=1+3,comm=0.5", 16),
    ):
        result = json.loads(schedule("simulate", name, "--ranks", str(ranks), "--microbatches",
                                     str(count), "--cost", cost, "--json"))
        if abs(result["makespan"] - wanted) > 1e-6:
            raise AssertionError(f"{name} {ranks} {count} {cost}: {result['makespan']}, wanted {wanted}")
        if len(result["peak_stash"]) != ranks:
            raise AssertionError(f"{name}: {result}")


def baselines(_):
    """Orders for comparison only."""
    many = json.loads(schedule("simulate", "gems", "--ranks", "4", "--microbatches", "200", "--json"))
    if abs(many["bubble"] - 3 / 4.5) > 0.01 or max(many["peak_stash"]) != 1:
        raise AssertionError(f"gems: {many}")
    body = json.loads(schedule("simulate", "pipedream", "--ranks", "4", "--microbatches", "4", "--json"))
    if len(body["peak_stash"]) != 4 or body["makespan"] < 12:
        raise AssertionError(f"pipedream: {body}")
    for more, words in ((["gems", "--ranks", "3", "--microbatches", "4"], "even"),
                        (["gems", "--ranks", "4", "--microbatches", "4", "--forward"], "flags"),
                        (["pipedream", "--ranks", "4", "--microbatches", "8"], "4, not 8")):
        told = schedule("simulate", *more, status=REFUSED)
        if words not in told:
            raise AssertionError(f"{more}: {told}")
    told = run("plan", GPT, "--stages", "2", "--schedule", "gems")
    if told.status != USAGE or "is for comparison only" not in told.err:
        raise AssertionError(f"plan --schedule gems: {told.status} {told.err}")


def refusals(folder):
    path = os.path.join(folder, "bad.csv")

    def says(text, words, *arguments, status=CHECK_FAILED):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        told = schedule(*(arguments or ("check", path)), status=status)
        if not all(word in told for word in words):
            raise AssertionError(f"{words} are not all in: {told.strip()}")

    for cost, words in (("F=1+1+1", ("3", "2")), ("F=1+1,W=1+1+1", ("2", "3")), ("F=1+", ("F=",)),
                        ("F=1+-1", ("F=",)), ("comm=1+1", ("comm=",))):
        told = schedule("simulate", "gpipe", "--ranks", "2", "--microbatches", "2", "--cost", cost,
                        status=REFUSED if cost == "F=1+1+1" else USAGE)
        if not all(word in told for word in words):
            raise AssertionError(f"--cost {cost}: {told.strip()}")
    good = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
    says("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", ("1B1", "missing"))
    says("0F0,0F0,0B0,0B1\n1F0,1B0,1F1,1B1\n", ("rank 0, step 1: 0F0", "twice"))
    says("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n", ("rank 1, step 0: 1B0", "1F0"))
    says("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", ("rank 0, step 1: 0B0", "rank 1, step 0: 1F1"))
    says("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
         "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
         ("deadlock", "rank 0, step 3: 0SEND_F1", "rank 1, step 3: 1SEND_B0"),
         "check", path, "--rule", "blocking")
    says("0F0,0X1\n", ("row 1, column 2", "0X1"), status=REFUSED)
    says("0F0,0F1\n0B0,0B1\n", ("row 2, column 1", "stage 0"))
    says("0F0,0F1\n0B0,0B1\n", ("row 2, column 1", "stage 0"), "show", path, status=REFUSED)
    says("0F0\n1SEND_F0\n", ("row 2, column 1", "1SEND_F0"), status=REFUSED)
    says("", ("no ranks",), status=REFUSED)
    says("#onnx-pipe-schedule v2\n", ("v1",), status=REFUSED)
    says(good, ("--ranks 3", "2"), "check", path, "--ranks", "3", status=USAGE)
    says(good, ("lazy",), "check", path, "--receives", "late", status=USAGE)
    says(good, ("rule",), "check", path, "--rule", "chance", status=USAGE)
    says(good, ("--ranks",), "show", "gpipe", status=USAGE)
    says("", ("schedule 'csv'", "deadlocks", "0B0"), "show",
         "csv:text=0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", *"--ranks 2 --microbatches 2 --aligned".split(),
         status=REFUSED)
    for order, words in (
            ("0F0 0B0 0F1 0B1\n1F1 1B1 1F0 1B0", ("rank 0, action 1: 0B0 waits for rank 1, action 3: 1B0",
                                                  "rank 1, action 0: 1F1 waits for rank 0, action 2: 0F1")),
            ("(0F0;0B0)OVERLAP_F_B 0F1 0B1", ("rank 0, action 1: 0B0 waits for rank 0, action 0: 0F0",))):
        ranks = str(1 + order.count("\n"))
        told = run("plan", GPT, "--train", "--bind", "batch=4,seq=8", "--ranks", ranks, "--microbatches", "2", "--loss",
                   "cross-entropy:logits=logits,labels=labels,shift=1", "--schedule", "csv:text=" + order)
        if told.status != REFUSED or not all(word in told.err for word in words):
            raise AssertionError(f"{order}: {told.err.strip()}")
    says("(0F0;0B0)OVERLAP_F_B,0F1,0B1\n", ("deadlocks", "rank 0, step 1: 0B0 waits for rank 0, step 0: 0F0"))
    says("(0F0;0B0)OVERLAP_F_B,0FREE0,STEP\n", ("deadlock (rule tag)", "rank 0, step 1: 0B0 waits for rank 0, step 0: 0F0"))
    says(schedule("lower", "gpipe", *SIZE), ("FREE0", "rank 0"), "convert", path, "--dialect",
         "torch", status=REFUSED)
    says(good, ("replicas",), "show", "chimera", *SIZE, "--dialect", "torch", status=REFUSED)
    says(good, ("even",), "show", "chimera", "--ranks", "3", "--microbatches", "3", status=REFUSED)
    says(good, ("there is no schedule",), "show", "nobody", *SIZE, status=USAGE)
    says(good, ("frob",), "frob", path, status=USAGE)


HEADER = """#onnx-pipe-schedule v1
#ranks={0} stages={0} replicas=1 microbatches=2 slices=1 parts=1 mode=train versions=one sync=end
#place={1}
"""
CROSSED = ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
           "1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n")


def circle(n):
    """A deadlock of 2 n members: every rank does its second stage first, which needs the rank before."""
    stages = [f"{n + rank}F0,{rank}F0,{n + rank}B0,{rank}B0\n" for rank in range(n)]
    return "".join(stages)


def verdicts(folder):
    """check --json: rank, step and action, and the circle of those that wait; 3 where nothing can be read."""
    path = os.path.join(folder, "verdict.csv")
    cases = (("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", [], DONE, None, 0),
             ("0F0,0F1,0B0,0B1\n1B0,1F0,1F1,1B1\n", [], CHECK_FAILED, (1, 0, "1B0"), 0),
             ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n", [], CHECK_FAILED, (1, None, "1B1"), 0),
             ("0F0,0F1,0B0,0B1,0FREE0,0FREE0\n1F0,1B0,1F1,1B1\n", [], DONE, None, 0), # lowering places its own
             ("0F0,0F1\n0B0,0B1\n", [], CHECK_FAILED, (1, 0, None), 0),
             ("0F0,0B0\n2F0,2B0\n", [], CHECK_FAILED, (None, None, None), 0),
             (HEADER.format(2, "0,1") + "rank 0: 0F0 0F1 1F1 0B0 0B1\nrank 1: 1F0 1B0 1B1\n", [], CHECK_FAILED,
              (0, 2, "1F1"), 0),
             (HEADER.format(2, "0,1") + "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1 STEP\n"
              "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1\n", [], CHECK_FAILED, (1, None, "STEP"), 0),
             (HEADER.format(2, "0,1") + "rank 0: 0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0FREE0 0RECV_B1 0B1 STEP\n"
              "rank 1: 1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1 STEP\n", [], CHECK_FAILED, (0, None, "0FREE1"), 0),
             ("0F0,0R0,0R0,0B0\n", [], CHECK_FAILED, (0, 2, "0R0"), 0),
             ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n", [], CHECK_FAILED, (0, 1, "0B0"), 2),
             (CROSSED, ["--rule", "tag"], DONE, None, 0),
             (CROSSED, ["--rule", "stream"], CHECK_FAILED, (1, 0, "1RECV_F1"), 2),
             (CROSSED, ["--rule", "edge"], CHECK_FAILED, (1, 0, "1RECV_F1"), 2),
             (CROSSED, ["--rule", "pair"], CHECK_FAILED, (1, 0, "1RECV_F1"), 2),
             ("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
              "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n", ["--rule", "blocking"], CHECK_FAILED,
              (0, 3, "0SEND_F1"), 2))
    for text, more, status, place, n_cycle in cases:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        result = run("schedule", "check", path, *more, "--json")
        told = json.loads(result.out)
        if result.status != status or told["proven"] != (status == DONE):
            raise AssertionError(f"{text}: {result.status}, {told}")
        if status == DONE:
            continue
        if (told["rank"], told["step"], told["action"]) != place or len(told["cycle"]) != n_cycle or not told["why"]:
            raise AssertionError(f"{text}: {told}")
        if told["left_out"] != 0:
            raise AssertionError(f"{text}: {told}")
        for here, there in zip(told["cycle"], told["cycle"][1:] + told["cycle"][:1]):
            if here["waits_for"]["rank"] != there["rank"]:
                raise AssertionError(f"no circle: {told['cycle']}")
    for text in ("0F0 0F0 0B0 0B1\n1F0 1B0 1F1 1B1", "0F0 0F1 0B0 0B1\n1B0 1F0 1F1 1B1", "0F0 0B0 0F1\n1F0 1B0 1F1 1B1",
                 "0F0 0B0 0F1 0B1\n1F0 1F1 1B0 1B1"):
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(" ", ",") + "\n")
        told = [run("schedule", "check", *what, "--json") for what in
                ((path,), ("csv:text=" + text, "--ranks", "2", "--microbatches", "2"))] # a plugin's order
        facts = [{key: value for key, value in json.loads(result.out).items() if key != "why"} for result in told]
        if [result.status for result in told] != [CHECK_FAILED] * 2 or facts[0] != facts[1]:
            raise AssertionError(f"{text}: {[result.status for result in told]}, {facts}")
    for name in ("nobody", "1f1b:depth=x", "chimera"): # there is no order
        schedule("check", name, "--ranks", "3", "--microbatches", "3", status=REFUSED if name == "chimera" else USAGE)
    with open(path, "w", encoding="utf-8") as file:
        file.write(circle(30))
    told = json.loads(run("schedule", "check", path, "--json").out)
    if len(told["cycle"]) + told["left_out"] != 30 or len(told["cycle"]) < 3:
        raise AssertionError(f"a cycle of 30: {told}")
    for missing, words in ((os.path.join(folder, "none.csv"), "No such file"), (folder, "not a regular file"),
                           ("none.csv", "No such file"), ("file:none", "No such file")):
        told = schedule("check", missing, status=REFUSED if missing == folder else USAGE)
        if words not in told or missing.replace("file:", "") not in told:
            raise AssertionError(f"check {missing}: {told.strip()}")


def listing(_):
    rows = json.loads(schedule("list", "--json"))
    names = [row["name"] for row in rows]
    search = [[option["key"] for option in row["options"]] for row in rows if row["name"] == "search"]
    if search != [["moves", "seed", "from"]]: # no plugin, and a name all the same
        raise AssertionError(f"search is listed as {search}")
    for name in NAMES:
        if name.split(":")[0] not in names:
            raise AssertionError(f"{name} is not listed")
    options = {(row["name"], option["key"]): option for row in rows for option in row["options"]}
    for key, wanted in ((("1f1b", "depth"), ("integer", 1, 1 << 24)), (("1f1b", "eager"), ("integer", 0, 1)),
                        (("1f1b", "policy"), ("choice", None, None)), (("zb-auto", "memory"), ("number", 0, 1e6)),
                        (("csv", "text"), ("text", None, None)), (("search", "from"), ("text", None, None)),
                        (("search", "moves"), ("integer", 1, 10**9)), (("search", "seed"), ("integer", 0, None))):
        found = options[key]
        if (found["type"], found.get("min"), found.get("max")) != wanted:
            raise AssertionError(f"{key}: {found}")
    text = schedule("list")
    for words in ("depth=...  most micro-batches that a stage keeps activations of (integer, 1 to 16777216)",
                  "(integer, at least 0; default: 0)", "(integer, 0 to 1; default: 0)", "(choice; default: pa)", "(number, 0 to 1000000"):
        if words not in text:
            raise AssertionError(f"list: '{words}' is not in it")
    if not all(name in text for name in names):
        raise AssertionError("list in text leaves one out")


def overlooked(folder):
    """An option that a verb does not look at is refused, with those that do."""
    path = os.path.join(folder, "order.csv")
    with open(path, "w", encoding="utf-8") as file:
        file.write(schedule("show", "gpipe", *SIZE))
    name = ("gpipe", *SIZE)
    for arguments, words in (
            (("simulate", path, "--forward"), "--forward applies to a NAME, but"),
            (("show", path, "--aligned"), "--aligned applies to a NAME"),
            (("show", path, "--replicas", "2"), "--replicas applies to a NAME"),
            (("show", path, "--cost", "F=2"), "schedule show FILE takes no --cost: simulate and draw do"),
            (("show", *name, "--from", "torch"), "--from applies to a FILE, but gpipe is not one"),
            (("check", path, "-o", path), "takes no --output: show, lower, simulate, draw and convert do"),
            (("list", "-o", path), "schedule list takes no --output"),
            (("list", "--ranks", "4"), "schedule list takes no --ranks"),
            (("show", *name, "--rule", "tag"), "schedule show takes no --rule: check does"),
            (("simulate", *name, "--rule", "pair"), "takes no --rule"),
            (("lower", *name, "--rule", "pair"), "takes no --rule"),
            (("check", *name, "--format", "csv"), "takes no --format: show, lower and convert do"),
            (("simulate", *name, "--format", "json"), "takes no --format"),
            (("check", *name, "--dialect", "opipe"), "takes no --dialect"),
            (("show", *name, "--receives", "early"), "takes no --receives: lower and check do"),
            (("lower", *name, "--aligned"), "takes no --aligned: show does"),
            (("draw", *name, "--json"), "schedule draw takes no --json"),
            (("check", *name, "--cluster", "x.json"), "takes no --cluster: simulate and draw do"),
            (("show", *name, "--tensor", "2"), "takes no --tensor"),
            (("simulate", *name, "--cost", "F=1+1+1+1,F=3"), "F= is given twice"),
            (("simulate", *name, "--cost", "comm=1,comm=1"), "comm= is given twice")):
        told = schedule(*arguments, status=USAGE)
        if words not in told:
            raise AssertionError(f"{arguments}: {told.strip()}")
    with open(path, "w", encoding="utf-8") as file:
        file.write(schedule("lower", *name))
    if "has its messages already" not in schedule("check", path, "--receives", "lazy", status=USAGE):
        raise AssertionError("receives of a lowered order")
    later = schedule("simulate", *name, "--cost", "F=1+2+3+4,W=1+1+1+1", "--cost", "F=3,W=1")
    if later != schedule("simulate", *name, "--cost", "F=3") or later == schedule("simulate", *name):
        raise AssertionError(f"the later --cost does not hold: {later}")


def main():
    need_command()
    count = Count()
    cases = [(name, lambda folder, name=name: every_verb(name, folder)) for name in NAMES]
    cases += [("tables", tables), ("makespans", makespans), ("refusals", refusals),
              ("verdicts", verdicts), ("overlooked", overlooked), ("baselines", baselines),
              ("list", listing)]
    with tempfile.TemporaryDirectory() as folder:
        for name, check in cases:
            try:
                check(folder)
                why = None
            except AssertionError as error:
                why = str(error)
            count.check(name, why)
    return count.finish()


if __name__ == "__main__":
    sys.exit(main())
