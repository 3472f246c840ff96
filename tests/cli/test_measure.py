#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""plan --measure: what was predicted is run; the plan that is printed and written is the one that measured best; bytes
are those of the session; what cannot be run here is refused. More of them: test_measure_full.py."""
import json
import os
import sys
import tempfile

from command import DATA, DONE, USAGE, Count, need_command, run

DEMO = os.path.join(DATA, "demo", "model.onnx")
LOSS = ["--train", "--loss", "cross-entropy:logits=logits,labels=input_ids,shift=1"]
TEXT = ["--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--bind", "seq=16", "--batch", "8"]
TWO = ["--device", "cpu,threads=1", "--device", "cpu,threads=1"]
ROUNDS = 7


def main():
    need_command()
    count = Count()
    with tempfile.TemporaryDirectory() as folder:
        judged(count, folder, "requests", [DEMO, "--auto=throughput", *TWO, "--bind", "batch=4,seq=8"], "request of a stream", 4)
        judged(count, folder, "steps", [DEMO, *LOSS, *TEXT, "--auto", *TWO], "step", 4)
    told(count)
    refused(count)
    return count.finish()


def judged(count, folder, name, arguments, unit, plans):
    """As many plans as given were measured equally often; best, printed and written plan are one."""
    path = os.path.join(folder, "plan.json")
    result = run("plan", *arguments, "--measure", "--json", "-o", path, timeout=240)
    if result.broken(200, 2048) or result.status != DONE:
        count.check(name, result.broken(200, 2048) or result.err[-300:])
        return
    said = json.loads(result.out)
    rows = said["measured"]
    count.check(f"{name}: what", None if said["unit"] == unit and len(rows) == plans else f"{said['unit']}, {len(rows)} plans")
    wrong = [r for r in rows if len(r["rounds_ms"]) != ROUNDS or min(r["rounds_ms"]) <= 0 or r["predicted_ms"] <= 0 or
             r["measured_ms"] != sorted(r["rounds_ms"])[ROUNDS // 2]]
    count.check(f"{name}: rounds", f"{wrong}" if wrong else None)
    off = [r for r in rows if r["session_bytes"] != r["predicted_bytes"]]
    count.check(f"{name}: bytes", f"predicted is not what sessions have: {off}" if off else None)
    best = [r for r in rows if r["best"]]
    least = min(r["measured_ms"] for r in rows)
    count.check(f"{name}: best", None if len(best) == 1 and best[0]["measured_ms"] == least else f"{best}, least {least}")
    # the other one was as fast in two rounds or more, side by side: nobody can tell
    close = [sum(a <= b for a, b in zip(r["rounds_ms"], best[0]["rounds_ms"])) > 1 and not r["best"] for r in rows]
    count.check(f"{name}: spread", None if [r["within_spread"] for r in rows] == close else f"{close}: {rows}")
    with open(path, encoding="utf-8") as file:
        written = json.load(file)
    shape = f"{len(written['stages'])} stages on {len(written['devices'])} ranks, {written['microbatches']} micro-batches"
    count.check(f"{name}: written", None if written == said["plan"] and shape in best[0]["plan"] and (
        plans == 1 or best[0]["plan"].partition(",")[0].partition(":")[0] == written["schedule"]) else f"{shape}, {written['schedule']}: {best}")


def told(count):
    """For people: a star, both figures, the plan."""
    result = run("plan", DEMO, "--stages", "2", "--bind", "batch=4,seq=8", "--measure", timeout=120)
    texts = ("measured here: a request of a stream, medians of 7 rounds", " 1* as given, 2 stages", " ms, measured ", "iB) predicted, ",
             "predicted (measured nodes)")
    lacks = [text for text in texts if text not in result.out]
    count.check("text", result.broken(100, 2048) or (f"no {lacks}: {(result.err or result.out)[-300:]}" if lacks else None))


def refused(count):
    arch = ["--arch", "gpt:layers=2,hidden=64,heads=4,vocab=128,seq=32"]
    for arguments, text in (([*arch, "--cluster", "h100"], "a MODEL is needed"),
                            ([DEMO, "--cluster", "h100"], "--cluster h100 describes others"),
                            ([DEMO, "--auto", "--hypothetical"], "--hypothetical strategy cannot be run"),
                            ([DEMO, *LOSS, "--stages", "2"], "train needs --data")):
        result = run("plan", *arguments, "--measure")
        count.check(text, result.broken(20, 1024) or (None if result.status == USAGE and text in result.err else f"{result.status}: {result.err}"))


if __name__ == "__main__":
    sys.exit(main())
