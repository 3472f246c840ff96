# SPDX-License-Identifier: Apache-2.0
"""How far the ranks of a measured step ran at once, from a Chrome trace that `train --trace OUT.json` or `run` wrote."""
import json

MEASURED = 0  # the process of what ran; the other one is the plan's


def programs_of(path):
    """{rank: [(start, end), ...]} of the measured programs, by time; sums and updates are left out, which the host sees to."""
    with open(path, encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    ranks = {}
    for e in events:
        if e["pid"] != MEASURED:
            continue
        if e["ph"] == "M" and e["name"] == "thread_name" and "," not in e["args"]["name"]:
            ranks.setdefault(e["tid"], [])
        elif e["ph"] == "X" and e["cat"] in ("F", "B", "I", "W"):
            ranks.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    return {rank: sorted(spans) for rank, spans in ranks.items()}


def overlap(path):
    """{"two_at_once": of the time from the first program's begin to the last one's end, that in which at least two ranks ran one;
    "busy": that in which each rank did, by rank}. A trace without programs is a ValueError."""
    ranks = programs_of(path)
    spans = [span for rank in ranks.values() for span in rank]
    if not spans:
        raise ValueError("%s: no program was measured" % path)
    total = max(end for _, end in spans) - min(start for start, _ in spans)
    marks = []
    busy = []
    for rank in sorted(ranks):
        mine, until = 0.0, float("-inf")
        for start, end in ranks[rank]:  # a rank counts once, whatever lies over itself
            start = max(start, until)
            if end > start:
                marks += [(start, 1), (end, -1)]
                mine, until = mine + end - start, end
        busy.append(mine / total if total > 0 else 0.0)
    two, running, before = 0.0, 0, 0.0
    for at, step in sorted(marks):
        two += at - before if running >= 2 else 0.0
        running, before = running + step, at
    return {"two_at_once": two / total if total > 0 else 0.0, "busy": busy}
