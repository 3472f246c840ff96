#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""profile --cluster of several processes: links are those between them, measured by messages of the transport; a refusal of one is
everybody's. Alone, or told to be, it measures threads."""
import json
import os
import re
import subprocess
import sys

from command import COMMAND, DONE, REFUSED, USAGE
from small import check


def profile(count, what, status, *words, processes=2):
    command = [COMMAND, *(["launch", "-n", str(processes), "--"] if processes > 1 else []), "profile", "--cluster", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    count.check(f"{what}: status", None if done.returncode == status else f"{done.returncode}, not {status}: {done.stderr[-600:]}")
    return done


def described(count, what, text):
    """The only cluster in the text, as one line."""
    try:
        cluster = json.loads(re.sub(r"(?m)^\[rank 0\] ", "", text))
    except ValueError:
        count.check(f"{what}: one description", text[:400])
        return None
    found = json.dumps(cluster)
    latency = [float(x) for x in re.findall(r'"latency_ns": ([\d.]+)', found)]
    rate = [link["bandwidth"] for link in cluster["links"]]
    count.check(f"{what}: links are measured", None if latency and rate and all(0 < x < 1e9 for x in latency) and min(rate) > 1e6 else found[-600:])
    return found


def links(count, folder):
    for n in (2, 3):
        what = f"{n} processes"
        found = described(count, what, profile(count, what, DONE, "--json", processes=n).stdout)
        count.check(f"{what}: over shm", None if found and '"shm"' in found and '"name": "processes"' in found else found and found[-400:])
    path = os.path.join(folder, "here.json")
    done = profile(count, "a file", DONE, "-o", path)
    with open(path, encoding="utf-8") as file:
        described(count, "a file", file.read())
    count.check("a file: process 0 prints", None if "[rank 1]" not in done.stdout else done.stdout[:300])
    found = described(count, "alone", profile(count, "alone", DONE, "--json", processes=1).stdout)
    count.check("alone: threads", None if found and '"name": "threads"' in found else found and found[:400])
    profile(count, "told to be alone", DONE, "--launcher", "none", "-o", os.path.join(folder, "alone.json"))


def refusals(count, _):
    done = profile(count, "no such transport", REFUSED, "--transport", "nonesuch")
    count.check("no such transport: is named", None if "nonesuch" in done.stderr else done.stderr[-300:])
    done = subprocess.run([COMMAND, "profile", "model.onnx", "--launcher", "none"], capture_output=True, text=True, timeout=60, check=False)
    count.check("a model", None if done.returncode == USAGE and "--launcher is for --cluster" in done.stderr else done.stderr[-300:])


if __name__ == "__main__":
    sys.exit(check(links, refusals))
