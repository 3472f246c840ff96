#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pages of orders of 64 ranks x 512 micro-batches: their bytes, the command's processor time, and how long frames take while
a page is zoomed and moved in Chromium.

usage: page.py [--tries N] [--record]
exit status: 1 where a page has more than 8 MiB, or where less than 95 % of its frames took less than 50 ms
"""
import argparse
import datetime
import os
import resource
import subprocess
import sys
import tempfile

import browser
import frames
from command import DONE, SOURCE, run

MOST_BYTES, MOST_MS, PART = 8 << 20, 50, 0.95
ORDERS = [("1f1b", False), ("zb-h1", False), ("chimera", False), ("zbv", False), ("interleaved:chunks=4", False), ("1f1b", True),
          ("interleaved:chunks=4", True)]
RECORDS = os.path.join(SOURCE, "tests", "bench", "records")


def make(folder, name, played):
    """The page's path, and seconds of processors that the command took."""
    path = os.path.join(folder, f"{name.split(':')[0]}-{played}.html")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    more = [*frames.CLUSTER, *frames.LOAD] if played else []
    result = run("schedule", "draw", name, *frames.SIZE, *more, "-o", path, timeout=600)
    if result.status != DONE:
        raise SystemExit(f"schedule draw {name}: {result.err.strip()[-400:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return path, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(path, links, tries):
    """The try with the most frames in time: one browser each."""
    found = []
    for _ in range(tries):
        with browser.Browser() as b:
            b.open(path, 1600, 1200)
            frames.show_links(b, links)
            found.append(frames.measure(b))
    return max(found, key=lambda one: (one.share(MOST_MS), -one.within(PART)))


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "?")


def version():
    return subprocess.run([browser.find(), "--version"], capture_output=True, text=True, check=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tries", type=int, default=1, help="of each page; the best counts")
    parser.add_argument("--record", action="store_true")
    args = parser.parse_args()
    if browser.find() is None:
        raise SystemExit("page.py: there is no chromium")
    today, bad = datetime.date.today().isoformat(), 0
    lines = [f"# Pages of plans, {today}", "",
             f"64 ranks x 512 micro-batches (`schedule draw NAME -o page.html`), {version()} without a window, 1600 x 1200, on {os.cpu_count()} cores of {processor()};",
             f"others' load {os.getloadavg()[0]:.1f}. 240 frames of each page, zoomed in and out around two places and moved; processors: of all of the browser's processes.",
             "", "| order | bytes | seconds to write | frames under 50 ms | 95 % within | half within | processors a frame |", "|---|---|---|---|---|---|---|"]
    print("\n".join(lines), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, played in ORDERS:
            path, seconds = make(folder, name, played)
            n_bytes = os.path.getsize(path)
            for links in (False, True) if played else (False,):
                found = measure(path, links, args.tries)
                what = f"`{name}`" + (" on `selene:nodes=8`, with memory" if played else "") + (", links shown" if links else "")
                lines.append(f"| {what} | {n_bytes:,} | {seconds:.2f} | {100 * found.share(MOST_MS):.1f} % | {found.within(PART):.1f} ms | "
                             f"{found.within(0.5):.1f} ms | {found.work:.1f} ms |")
                print(lines[-1], flush=True)
                bad += n_bytes > MOST_BYTES or found.share(MOST_MS) < PART
    if args.record:
        lines += ["", "Pictures: [a training plan](page/plan-1600-light.png), [narrow and dark](page/plan-400-dark.png), [an order of 64 ranks as it "
                  "fills](page/order-1600-dark.png),", "[all of it, narrow](page/order-400-light.png), [two plans](page/explain-1600-light.png), [planned and "
                  "measured](page/measured-1600-dark.png)."]
        with open(os.path.join(RECORDS, f"{today}-page.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        bad += subprocess.run([sys.executable, "-B", os.path.join(SOURCE, "tests", "page", "test_browser_full.py"), "--record"], check=False).returncode != 0
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
