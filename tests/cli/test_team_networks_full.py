# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300 label=full
"""Training over two networks that reach nothing but each other, by UCX: the bits of threads. A link that goes down, and a route into a black
hole, are named within the silence and two seconds."""
import json
import re
import sys
import time

from command import need_command, run
from networks import HOSTS, LINKS, Machines, ip
from team_jobs import SLOW, TRAIN, Checks, until
from test_team_ucx import is_there

SILENCE = 2
check = Checks()


def steps(text):
    said = json.loads(text[text.index("{"):text.rindex("}") + 1])
    return [(s["step"], s["loss"], s["gradient_norm"]) for s in said["steps"]]


def printed(job):
    return re.sub(r"(?m)^\[rank \d+\] ", "", job.text(job.out))


def test_training_has_the_bits_of_threads():
    for n in (1, 2):
        words = [*TRAIN, "--ranks", str(2 * n), "--schedule", "chimera", "--steps", "3", "--json"]
        threads = run(*words, "--transport", "ucx")
        jobs = machines.launch(29511, *words, n=n)
        until(lambda jobs=jobs: all(job.main.poll() is not None for job in jobs), 60 * SLOW)
        out = printed(jobs[0])
        ended = [job.end(10) for job in jobs]
        check(threads.status == 0 and [status for status, _, _ in ended] == [0, 0], f"{n} a machine: {threads.err} {ended}")
        check(steps(out) == steps(threads.out), f"{n} a machine: {steps(out)}, threads {steps(threads.out)}")


def break_it(what, *words):
    """While two processes train: both launches end with an error that names the other's process, in time."""
    jobs = machines.launch(29512, *TRAIN, "--ranks", "2", "--steps", "100000", "--silence", str(SILENCE * SLOW))
    check(jobs[0].says(r"step 3 ", 60 * SLOW), f"{what}: it does not train: {jobs[0].text(jobs[0].err)}{jobs[0].text(jobs[1].err)}")
    began = time.monotonic()
    ip(machines.all[0], *words)
    most = (SILENCE + 2) * SLOW
    ended = until(lambda: all("has been silent" in job.text(job.err) for job in jobs), 30 * SLOW)
    took = time.monotonic() - began
    texts = [job.end(30 * SLOW)[:2] for job in jobs]
    check(ended and took < most, f"{what}: {took:.1f} s of {most}: {texts}")
    check(all(status not in (0, None) for status, _ in texts), f"{what}: {texts}")
    check("process 1 " in texts[0][1] and "process 0 " in texts[1][1], f"{what}: {texts}")
    print(f"{what}: {took:.1f} s")


def test_a_blackhole_is_named_in_time():
    break_it("a black hole", "route", "add", "blackhole", HOSTS[1] + "/32")
    ip(machines.all[0], "route", "del", "blackhole", HOSTS[1] + "/32")


def test_a_link_that_goes_down_is_named_in_time():
    break_it("link down", "link", "set", LINKS[0], "down")
    machines.up()


need_command()
if not is_there():
    print("SKIP: UCX (libucp.so.0, package libucx0) is not there")
    sys.exit(77)
machines = Machines()
try:
    if not machines.there:
        print("SKIP: networks cannot be made here: unshare --net is refused")
        sys.exit(77)
    check.run(globals())
finally:
    machines.close()
