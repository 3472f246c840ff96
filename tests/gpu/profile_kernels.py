# SPDX-License-Identifier: Apache-2.0
"""Where a GPU's time goes: every kernel of a program, by ncu, at the clocks of a GPU that rests between them (under load they fall)."""
import csv
import os
import shutil

from bundle_kit import Failed, NotRun, log, run, work

UNITS = {"ns": 1e-3, "nsecond": 1e-3, "us": 1, "usecond": 1, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
MOST = 30  # kernels that are told by name


def durations(lines):
    """[(kernel, microseconds)] of ncu's CSV, whatever it says around that."""
    table = csv.DictReader(line for line in lines if line.startswith('"'))
    found = []
    for row in table:
        unit = UNITS.get(row["Metric Unit"])
        if unit is None or row["Metric Name"] != "gpu__time_duration.sum":
            raise Failed("ncu tells %s in %s" % (row["Metric Name"], row["Metric Unit"]))
        found.append((row["Kernel Name"], unit * float(row["Metric Value"].replace(",", ""))))
    return found


def by_kernel(found, times):
    """Launches and milliseconds of one of `times` equal pieces of work: all of it, and by kernel, the most first."""
    each = {}
    for name, us in found:
        short = name.split("(")[0].split("<")[0].replace("void ", "")
        n, total = each.get(short, (0, 0.0))
        each[short] = (n + 1, total + us)
    most = sorted(each.items(), key=lambda one: -one[1][1])[:MOST]
    return {"launches": round(len(found) / times, 1), "ms": round(sum(us for _, us in found) / 1e3 / times, 4),
            "kernels": {name: [round(n / times, 1), round(us / 1e3 / times, 4)] for name, (n, us) in most}}


def kernels(arguments, times, clock):
    """A command's kernels."""
    tool = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    if not os.path.exists(tool):
        raise NotRun("there is no ncu")
    out = work("ncu.csv")
    how = [tool, "--clock-control", "none", "--metrics", "gpu__time_duration.sum", "--csv", "--log-file", out, *arguments]
    if os.path.exists(out):
        os.remove(out)  # of an earlier line
    done = run(how, clock)
    lines = ["it wrote no list"]
    if os.path.exists(out):
        with open(out, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    found = durations(lines)
    if done.returncode != 0 or not found:
        log(how, "status %d" % done.returncode, done.stdout, done.stderr, "\n".join(lines[-20:]))
        raise NotRun("ncu: status %d, %d kernels: %s" % (done.returncode, len(found), " / ".join(lines[-2:])))
    return by_kernel(found, times)
