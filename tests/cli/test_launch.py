# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 waits
"""launch: what ranks are given, how their lines come out, and how a job ends: the first failure is named and is the status, the others have 3 s,
then SIGTERM, 5 s later SIGKILL; nothing of a rank is left. The ranks are small shell commands."""
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import small
from command import COMMAND, DATA, SANITIZED

wrong = []
SLACK = 6 if SANITIZED else 2.5


def check(holds, what):
    if not holds:
        wrong.append(what)
        print("WRONG: " + what)


class Ended:
    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out.decode(), err.decode(), seconds


def launch(*words, stdin=b"", env=None, timeout=60):
    began = time.monotonic()
    done = subprocess.run([COMMAND, "launch", *words], input=stdin, capture_output=True, timeout=timeout, env=env)
    return Ended(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def shell(n, script, *options, **named):
    return launch("-n", str(n), *options, "--", "sh", "-c", script, **named)


def alive(mark):
    """Processes whose command line has the mark."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                line = file.read()
        except OSError:
            continue
        if mark.encode() in line and int(pid) != os.getpid() and b"launch" not in line:
            found.append(int(pid))
    return found


def told(ended, rank, how):
    return re.search(rf"launch: rank {rank} \(process \d+\) {how}", ended.err) is not None


def test_variables():
    e = shell(3, 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $TORCHELASTIC_RUN_ID $TORCHELASTIC_RESTART_COUNT')
    lines = sorted(e.out.splitlines())
    check(e.status == 0 and len(lines) == 3, f"three ranks: {e.status} {e.out!r} {e.err!r}")
    jobs = set()
    for rank, line in enumerate(lines):
        match = re.fullmatch(rf"\[rank {rank}\] {rank}/3 {rank}/3 127.0.0.1 (\S+) 0", line)
        check(match is not None, f"variables: {line!r}")
        jobs.add(match and match[1])
    check(len(jobs) == 1, f"one job's name: {jobs}")
    e = launch("-n", "2", "plugins", "--help")
    check(e.status == 0 and e.out.count("usage: onnx-pipe plugins") == 2, f"a command of onnx-pipe: {e.out!r} {e.err!r}")
    e = launch("-n", "1", "--", "sh", "-c", "exec ls /proc/self/fd")
    check(e.out.split() == "[rank 0] 0 [rank 0] 1 [rank 0] 2 [rank 0] 3".split(), f"descriptors of the launcher in a rank: {e.out!r}")


def test_lines():
    e = shell(2, "echo out $RANK; echo err $RANK >&2; printf 'no end'")
    check(sorted(e.out.splitlines()) == ["[rank 0] no end", "[rank 0] out 0", "[rank 1] no end", "[rank 1] out 1"], f"lines: {e.out!r}")
    check(sorted(e.err.splitlines()) == ["[rank 0] err 0", "[rank 1] err 1"], f"lines of errors: {e.err!r}")
    e = shell(2, "echo plain", "--tag", "0")
    check(e.out == "plain\nplain\n", f"--tag 0: {e.out!r}")
    e = shell(2, "yes 0123456789012345678901234567890123456789012345678 | head -n 200000")
    lines = e.out.splitlines()
    check(len(lines) == 400000 and len(set(lines)) == 2, f"10 MB of each: {len(lines)} lines, {len(set(lines))} different")
    e = shell(1, "head -c 3000000 /dev/zero | tr '\\0' x")
    check(e.out.replace("[rank 0] ", "").replace("\n", "") == "x" * 3000000, f"a line of 3 MB: {len(e.out)}")
    e = shell(2, "cat; echo $RANK done", stdin=b"first\nsecond\n")
    lines = e.out.splitlines()  # those of a rank in their order, between those of the other
    check([line for line in lines if line.startswith("[rank 0]")] == ["[rank 0] first", "[rank 0] second", "[rank 0] 0 done"], f"input: {e.out!r}")
    check([line for line in lines if not line.startswith("[rank 0]")] == ["[rank 1] 1 done"], f"input: {e.out!r}")
    with tempfile.TemporaryDirectory() as work:
        logs = os.path.join(work, "logs")
        e = shell(2, "echo out $RANK; echo err $RANK >&2", "--logs", logs)
        text = [open(os.path.join(logs, f"rank-{r}.log"), encoding="utf-8").read() for r in range(2)]
        check([sorted(t.splitlines()) for t in text] == [["err 0", "out 0"], ["err 1", "out 1"]] and "[rank 0] out 0" in e.out, f"--logs: {text}")
        e = shell(1, "true", "--logs", os.path.join(work, "none", "logs"))
        check(e.status == 3 and "--logs" in e.err, f"--logs where it cannot be: {e.status} {e.err!r}")
        os.symlink("/dev/full", os.path.join(work, "rank-1.log"))
        e = shell(2, "echo line; exec sleep 40.5", "--logs", work)
        full = f"{work}/rank-1.log: No space left on device"
        check(e.status == 3 and full in e.err and "signal" not in e.err and e.seconds < 5 + SLACK and not alive("40.5"), f"--logs on a full disk: {e.status} {e.err!r}")


def test_failures():
    e = shell(3, "[ $RANK = 1 ] && exit 3; exec sleep 0.3")
    check(e.status == 3 and told(e, 1, "ended with status 3"), f"exit 3: {e.status} {e.err!r}")
    e = shell(3, "[ $RANK = 2 ] && kill -9 $$; exec sleep 0.3")
    check(e.status == 137 and told(e, 2, r"was ended by signal 9 \(SIGKILL\)"), f"kill -9: {e.status} {e.err!r}")
    e = shell(2, "[ $RANK = 0 ] && exit 0; sleep 0.5; exit 0")
    check(e.status == 0 and e.err == "" and e.seconds > 0.4, f"exit 0 too early is no failure by itself: {e.status} {e.err!r}")
    e = shell(3, "[ $RANK = 1 ] && exit 7; exec sleep 41.5")
    check(e.status == 7 and 2.9 < e.seconds < 3 + SLACK, f"survivors have 3 s: {e.status} {e.seconds:.1f} s")
    check(alive("41.5") == [], "a survivor is left")
    e = shell(2, "trap '' TERM; [ $RANK = 1 ] && exit 5; exec sleep 42.5")
    check(e.status == 5 and 7.9 < e.seconds < 8 + SLACK, f"one that ignores SIGTERM: {e.status} {e.seconds:.1f} s")
    check(alive("42.5") == [], "one that ignores SIGTERM is left")


def test_grandchildren():
    e = shell(1, "sleep 43.5 & exit 0")
    check(e.status == 0 and e.seconds < SLACK and alive("43.5") == [], f"a child that keeps the pipe: {e.status} {e.seconds:.1f} s {alive('43.5')}")
    e = shell(1, "(trap '' TERM; exec sleep 44.5) & sleep 0.3; exit 0")
    check(e.status == 0 and 4.9 < e.seconds < 5.5 + SLACK and alive("44.5") == [], f"one that is deaf: {e.status} {e.seconds:.1f} s")
    e = shell(1, "setsid sleep 4 & sleep 0.3; exit 0")
    check(e.status == 0 and e.seconds < 2 + SLACK, f"one of a session of its own keeps the pipe: {e.seconds:.1f} s")


def running(n, script, *options):
    process = subprocess.Popen([COMMAND, "launch", "-n", str(n), *options, "--", "sh", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    for _ in range(n):
        process.stdout.readline()
    return process


def test_signals():
    p = running(2, "trap 'echo bye; exit 130' INT; echo here; while :; do sleep 0.1; done")
    p.send_signal(signal.SIGINT)
    out = p.communicate(timeout=30)[0].decode()
    check(p.returncode == 130 and out.count("bye") == 2, f"SIGINT: {p.returncode} {out!r}")
    p = running(2, "echo here; exec sleep 45.5")
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=30)
    check(p.returncode == 143 and alive("45.5") == [], f"SIGTERM: {p.returncode}")
    p = running(2, "trap 'echo saved; exit 0' USR1; echo here; while :; do sleep 0.1; done")
    p.send_signal(signal.SIGUSR1)
    out = p.communicate(timeout=30)[0].decode()
    check(p.returncode == 0 and out.count("saved") == 2, f"SIGUSR1: {p.returncode} {out!r}")
    p = running(2, "echo here; exec sleep 46.5")
    p.kill()
    p.communicate(timeout=30)
    until = time.monotonic() + 5
    while alive("46.5") and time.monotonic() < until:
        time.sleep(0.05)
    check(alive("46.5") == [], "ranks outlive a launcher that was killed")


def test_lost_output():
    p = subprocess.Popen([COMMAND, "launch", "-n", "1", "--", "sh", "-c", "while :; do echo line; done"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    p.stdout.readline()
    p.stdout.close()
    err = p.stderr.read().decode()
    check(p.wait(timeout=30) == 3 and "cannot write the output" in err, f"output that nobody reads: {p.returncode} {err!r}")
    p.stderr.close()


def test_restarts():
    with tempfile.TemporaryDirectory() as work:
        e = shell(2, "echo $TORCHELASTIC_RESTART_COUNT; [ $RANK = 1 ] && [ $TORCHELASTIC_RESTART_COUNT -lt 2 ] && exit 4; exit 0", "--restarts", "3")
        check(e.status == 0 and "restart 2 of 3" in e.err and "restart 3" not in e.err, f"--restarts: {e.status} {e.err!r}")
        e = shell(1, "exit 4", "--restarts", "2")
        check(e.status == 4 and e.err.count("ended with status 4") == 3, f"--restarts that do not help: {e.status} {e.err!r}")
        for status in (2, 130, 143):
            e = shell(1, f"exit {status}", "--restarts", "2")
            check(e.status == status and e.err.count("ended with") == 1, f"status {status} is not restarted: {e.err!r}")
        test_resumed_training(work)


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        found = file.read().split()
    return int(found[0]) if found else None


def steps_saved(folder):
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            return json.load(file)["steps"]
    except (OSError, ValueError):
        return 0


def test_resumed_training(work):
    """A training run that is killed resumes from its checkpoint and does the steps that are left, --overwrite or not."""
    model, data = small.write_model(os.path.join(work, "m.onnx")), small.write_data(work)
    for number, more in enumerate(([], ["--overwrite"])):
        save = os.path.join(work, f"saved-{number}")
        words = ["train", model, *data, "--batch", "4", "--steps", "400", "--save", save, "--save-every", "10", *more]
        p = subprocess.Popen([COMMAND, "launch", "-n", "1", "--restarts", "2", "--", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        until = time.monotonic() + 30
        while steps_saved(save) == 0 and time.monotonic() < until:
            time.sleep(0.002)
        killed_at = steps_saved(save)
        rank = child_of(p.pid)
        if rank is not None:
            os.kill(rank, signal.SIGKILL)
        err = p.communicate(timeout=60)[1].decode()
        check(p.returncode == 0 and "restart 1 of 2" in err and 0 < killed_at < 400, f"a killed training run: {p.returncode}, killed at {killed_at}: {err!r}")
        check(steps_saved(save) == 400, f"steps after the restart: {steps_saved(save)}")


def test_usage():
    for words, status, says in (
        (["--", "true"], 2, "-n N is needed"),
        (["-n", "2"], 2, "a command is needed"),
        (["-n", "0", "--", "true"], 2, "processes"),
        (["-n", "4097", "--", "true"], 2, "4096"),
        (["-n", "2", "--tag", "2", "--", "true"], 2, "tag"),
        (["-n", "2", "--", "no-such-program-here"], 2, "there is no program 'no-such-program-here'"),
        (["-n", "2", "--", DATA], 3, "cannot be run"),
        (["-n", "2", "--log", "x", "--restart"], 2, "restart"),
    ):
        e = launch(*words)
        check(e.status == status and says in e.err, f"{words}: {e.status} {e.err!r}")
    limited = subprocess.run(["sh", "-c", f"ulimit -n 20; exec {COMMAND} launch -n 30 -- sleep 47.5"], capture_output=True, timeout=60, check=False)
    check(limited.returncode == 3 and b"Too many open files" in limited.stderr and alive("47.5") == [], f"20 descriptors: {limited.returncode} {limited.stderr!r}")


def main():
    test_variables()
    test_lines()
    test_failures()
    test_grandchildren()
    test_signals()
    test_lost_output()
    test_restarts()
    test_usage()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
