# SPDX-License-Identifier: Apache-2.0
"""Options of our provider: each does what it says, seen in the trace of a run, or fails the session with the reason."""

import json
import os
import re
import subprocess

from inside import BUILD, CLOSE, WORK, check, compare, demo, ids, raises, session


def traced(path):
    """The programs of a run: {ranks: ..., stage: ..., micro-batch: ...}, how many of each there were."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    ran = [e for e in events if e["ph"] == "X"]
    found = {"ranks": len({e["tid"] for e in ran})}
    for what in ("stage", "micro-batch"):
        found[what] = len({n for e in ran for n in re.findall(what + r" (\d+)", e["name"])})
    return found


def test_plans_are_as_asked_for():
    wanted = session(demo()).run(None, ids(4, 8))
    cases = [
        ({}, {"ranks": 1, "stage": 1}),
        ({"stages": 3, "threads": 1}, {"ranks": 3, "stage": 3}),
        ({"ranks": 2}, {"ranks": 2, "stage": 2}),
        ({"stages": 2, "microbatches": 4, "bind": "batch=4"}, {"ranks": 2, "micro-batch": 4}),
        ({"stages": 2, "microbatches": 2, "bind": "batch=4", "replicas": 2}, {"ranks": 4, "stage": 2}),
        ({"ranks": 2, "schedule": "interleaved:chunks=2", "microbatches": 2, "bind": "batch=4"}, {"ranks": 2, "stage": 4}),
        ({"stages": 2, "transport": "local", "shapes": 1}, {"ranks": 2, "stage": 2}),
    ]
    for i, (own, shape) in enumerate(cases):
        path = os.path.join(WORK, "trace%d.json" % i)
        made = session(demo(), dict(own, trace=path))
        compare(own, made.run(None, ids(4, 8)), wanted, CLOSE)
        del made
        found = traced(path)
        check(all(found[what] == n for what, n in shape.items()), own, "traced:", found)


def test_trace_as_picture():
    path = os.path.join(WORK, "trace.svg")
    made = session(demo(), {"stages": 2, "trace": path})
    made.run(None, ids(1, 8))
    check(not os.path.exists(path), "a trace before the end of its session")
    del made
    with open(path, encoding="utf-8") as file:
        text = file.read()
    check(text.lstrip().startswith("<svg") and "rank 1" in text, "trace:", text[:80])


def test_plan_from_a_file():
    """A plan of the graph that the option `model` wrote down; another model's plan is refused."""
    seen, plan, path = (os.path.join(WORK, name) for name in ("seen.onnx", "plan.json", "planned.json"))
    session(demo(), {"model": seen})
    compare("the graph that was written down", session(seen).run(None, ids(2, 9)), session(demo()).run(None, ids(2, 9)), CLOSE)
    command = [os.path.join(BUILD, "bin", "onnx-pipe"), "plan"]
    for model, out in ((seen, plan), (demo(), plan + ".other")):
        said = subprocess.run([*command, model, "--stages", "3", "-o", out], check=False, capture_output=True, text=True)
        check(said.returncode == 0, "onnx-pipe plan", model, said.stderr[-400:])
    made = session(demo(), {"plan": plan, "trace": path})
    compare("a plan from a file", made.run(None, ids(2, 9)), session(demo()).run(None, ids(2, 9)), CLOSE)
    del made
    check(traced(path)["stage"] == 3, "a plan from a file:", traced(path))
    raises("another graph's plan", "fingerprint", lambda: session(demo(), {"plan": plan + ".other"}))


def test_caps():
    """A plan that cannot fit fails the session, in the plan's words; if only a larger shape does not fit, its first run
    fails."""
    raises("a cap", "exceeds its cap", lambda: session(demo(), {"memory": "10KiB"}))
    raises("a cap of two", "exceeds its cap", lambda: session(demo(), {"memory": "100KiB", "stages": 2}))
    capped = session(demo(), {"memory": "1MiB", "bind": "batch=1,seq=4"})
    wanted = session(demo()).run(None, ids(1, 4))
    compare("below a cap", capped.run(None, ids(1, 4)), wanted, CLOSE)
    raises("a large shape", "of the device's 1048576 bytes", lambda: capped.run(None, ids(16, 60)))
    compare("below a cap, again", capped.run(None, ids(1, 4)), wanted, CLOSE)


def test_refusals():
    raises("stages", "stages=x is no number", lambda: session(demo(), {"stages": "x"}))
    raises("memory", "memory=much is no size", lambda: session(demo(), {"memory": "much"}))
    raises("partition", "known are whole and auto", lambda: session(demo(), {"partition": "no"}))
    raises("weights", "known are lent and copy", lambda: session(demo(), {"weights": "no"}))
    raises("a library", "/no/such.so", lambda: session(demo(), {"library": "/no/such.so"}))
    raises("a schedule", "nosuch", lambda: session(demo(), {"schedule": "nosuch"}))
    raises("a transport", "nosuch", lambda: session(demo(), {"transport": "nosuch"}))
    raises("a plan", "/no/plan.json", lambda: session(demo(), {"plan": "/no/plan.json"}))
    raises("bind", "nobody", lambda: session(demo(), {"bind": "nobody=3"}))
    raises("stages and ranks", "ranks", lambda: session(demo(), {"stages": 3, "ranks": 2}))
    ours = session(demo(), {"stages": 2})
    raises("an index", "onnx-pipe", lambda: ours.run(None, {"input_ids": ids(1, 4)["input_ids"] + 9999}))
    compare("after it", ours.run(None, ids(1, 4)), session(demo()).run(None, ids(1, 4)), CLOSE)


TESTS = (test_plans_are_as_asked_for, test_trace_as_picture, test_plan_from_a_file, test_caps, test_refusals)
