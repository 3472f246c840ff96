# SPDX-License-Identifier: Apache-2.0
"""A fault in one of several processes at an exact instant (tests/plugins/transport-impaired), and what must hold then in all the
others. Combinations that do not exist stand in NONE, with the reason."""
import concurrent.futures
import filecmp
import json
import os
import re
import signal
import tempfile
import time

from command import BUILD, run
from small import write_data, write_model
from team_jobs import GPT, SLOW, TRAIN, Job, Launched, processes, sockets, until

PLUGINS = os.path.join(BUILD, "tests", "plugins")
PRELOAD = os.path.join(PLUGINS, "fault-preload.so")
CGROUPS = ("/sys/fs/cgroup/memory", "/sys/fs/cgroup")
SILENCE = 1
PHASES = ("start", "warm-up", "steady", "reduction", "save", "close")
# Where each phase is struck, and in which process: only process 0's session writes what all share of a checkpoint.
PLACES = {"start": ("world:1", 1), "warm-up": ("send:1", 0), "steady": ("send:60", 1), "reduction": ("reduce:3", 1), "save": ("fsync:8", 0),
          "close": ("close:1", 1)}
FAULTS = {"kill -9": "kill", "SIGSTOP": "stop", "exit 3": "exit3", "exit 0": "exit0", "memory cgroup": "eat", "refused open": "refuse",
          "refused shape": None, "NaN": None}
NONE = {("refused open", phase): "a session is opened once, at the start" for phase in PHASES[1:]}
NONE.update({("refused shape", phase): "the command opens a session for each shape: a refused open" for phase in PHASES})
NONE.update({("NaN", "start"): "there is no loss yet", ("NaN", "close"): "there is no loss any more"})
# How messages go over something else than shared memory: of processes, of threads.
OVER = {None: ([], []), "ucx": (["--transport", "ucx:together=1"], ["--transport", "ucx"])}
MOVES = r"it was at '|its last call was '|; rank \d+ (in|at) "


def all_cases():
    return [(fault, phase) for fault in FAULTS for phase in PHASES if (fault, phase) not in NONE]


class Cgroup:
    """A memory cgroup for one process, version 1 or 2; path None where it cannot be made."""

    def __init__(self, name, n_bytes):
        self.path = None
        for root in CGROUPS:
            limit = next((f for f in ("memory.limit_in_bytes", "memory.max") if os.path.exists(os.path.join(root, f)) or
                          (f == "memory.max" and os.path.exists(os.path.join(root, "cgroup.subtree_control")))), None)
            path = os.path.join(root, name)
            if limit is None:
                continue
            try:
                os.mkdir(path)
                with open(os.path.join(path, limit), "w", encoding="utf-8") as file:
                    file.write(str(n_bytes))
                self.path = path
                return
            except OSError:
                if os.path.isdir(path):
                    os.rmdir(path)

    def enter(self):
        with open(os.path.join(self.path, "cgroup.procs"), "w", encoding="utf-8") as file:
            file.write("0")

    def remove(self):
        until(lambda: not open(os.path.join(self.path, "cgroup.procs"), encoding="utf-8").read(), 5)
        os.rmdir(self.path)


def stopped(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "T"
    except OSError:
        return True


def start(fault, phase, folder, where, victim, over):
    words = [*TRAIN, "--steps", "12", "--ranks", "2", "--silence", str(SILENCE * SLOW), "--transport", "impaired"]
    words += ["--save", os.path.join(folder, "saved"), "--save-every", "2"] if phase == "save" else []
    words += ["--schedule", "chimera"] if phase == "reduction" else []
    path = {"OPIPE_PLUGIN_PATH": os.path.join(BUILD, "lib", "onnx-pipe") + ":" + PLUGINS}
    path.update({"OPIPE_FAULT_OVER": over} if over else {})
    strike = dict(path, OPIPE_FAULT=f"{FAULTS[fault]}@{where}")
    if where.startswith("fsync"):
        strike["LD_PRELOAD"] = PRELOAD
    cgroup = Cgroup(f"onnx-pipe-test-{os.getpid()}-{phase}", 400 << 20) if fault == "memory cgroup" else None
    if cgroup is not None and cgroup.path is None:
        return None, None
    job = Job(2, *words, env={0: path, 1: path, victim: strike}, enter={victim: cgroup.enter} if cgroup else None)
    return job, cgroup


def judge(check, what, fault, victim, pid, ended, waited):
    """All but the victim: status, names, time."""
    for rank, (status, text, _) in enumerate(ended):
        if fault == "refused open":
            check(status == 3 and f"process {victim} (pid {pid})" in text and "the test refuses" in text, f"{what}, process {rank}: {status}: {text}")
            check(waited[rank] < 2 * SLOW, f"{what}, process {rank}: {waited[rank]:.1f} s after the other had ended")
        elif rank != victim:
            said = "has been silent" if fault == "SIGSTOP" else "has died"
            named = re.search(rf"process {victim} \(pid {pid}\) {said}.*({MOVES})", text)
            check(status == 3 and named, f"{what}, process {rank}: {status}: {text}")
            most = (SILENCE + 2 if fault == "SIGSTOP" else 2) * SLOW
            check(waited[rank] < most, f"{what}, process {rank}: {waited[rank]:.1f} s, more than {most}")


def strike(check, fault, phase, place=None, over=None):
    """Runs one combination, over shared memory or `over`; returns a reason where it was skipped."""
    where, victim = place or PLACES[phase]
    what = f"{fault} at {phase} ({where}, process {victim}{', over ' + over if over else ''})"
    with tempfile.TemporaryDirectory() as folder:
        job, cgroup = start(fault, phase, folder, where, victim, over)
        if job is None:
            return f"{what}: no memory cgroup can be made"
        pid = job.all[victim].pid
        struck = until(lambda: stopped(pid) if fault == "SIGSTOP" else job.all[victim].poll() is not None, 60)
        check(struck, f"{what}: nothing went wrong")
        ended = job.end(but=(victim,) if fault == "SIGSTOP" else (), seconds=30)
        wanted = {"kill -9": -9, "memory cgroup": -9, "exit 3": 3, "exit 0": 0, "refused open": 3}.get(fault)
        check(wanted is None or job.all[victim].returncode == wanted, f"{what}: the process itself: {job.all[victim].returncode}: {ended[victim][1]}")
        judge(check, what, fault, victim, pid, ended, [seconds for _, _, seconds in ended])
        check(not processes(job.job) and not sockets(job.job), f"{what}: left: {processes(job.job)} {sockets(job.job)}")
        if phase == "save":
            again = run(*TRAIN, "--steps", "1", "--ranks", "2", "--resume", os.path.join(folder, "saved"))
            check(again.status == 0, f"{what}: the last checkpoint does not load: {again.err}")
        if cgroup is not None:
            cgroup.remove()
    return None


# ---- launchers ----

def steps(text):
    return [(s["step"], s["loss"], s["gradient_norm"]) for s in json.loads(text[text.index("{"):text.rindex("}") + 1])["steps"]]


def steps_saved(folder):
    try:
        with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
            return int(json.load(file)["steps"])
    except (OSError, ValueError, KeyError):
        return 0


def bits_under(check, launchers, folder, over=None):
    """train and run under launchers have the bits of threads; over: one of OVER."""
    rest = ["--steps", "3", "--ranks", "2", "--json"]
    own = os.path.join(folder, "threads")
    apart, together = OVER[over]
    threads = run(*TRAIN, *rest, *together, "--save", own + "-save")

    def model_of(saved):
        """The weights after one step more, as a file."""
        again = run(*TRAIN, "--ranks", "2", "--steps", "1", *together, "--resume", saved + "-save", "--save-model", saved + ".onnx")
        check(again.status == 0, f"{saved}: {again.err}")
        return saved + ".onnx"

    model = model_of(own)
    run("run", GPT, "--ranks", "2", *together, "-o", own)
    for name in launchers:
        saved = os.path.join(folder, name)
        job = Launched(name, 2, *TRAIN, *rest, *apart, "--save", saved + "-save")
        until(lambda: job.main.poll() is not None, 60)
        out = re.sub(r"(?m)^\[rank 0\] ", "", job.text(job.out))
        status, text, _ = job.end()
        check(status == 0 and steps(out) == steps(threads.out), f"{name}, train: {status}: {text}")
        check(filecmp.cmp(model, model_of(saved), shallow=False), f"{name}: weights differ")
        status, text, _ = Launched(name, 2, "run", GPT, *apart, "-o", saved).end()
        names = os.listdir(own)
        check(status == 0 and names and not any(filecmp.cmpfiles(own, saved, names, shallow=False)[1:]), f"{name}, run: {status}: {text}")


def launcher_ends(check, name, how, where, victim, folder, over=None):
    """One process ends in this way after a checkpoint: all are gone within 5 s, then the launcher ends, which may be slow itself, and the
    checkpoint loads. where: "outside", by a signal of this test."""
    what = f"{name}, {how} of rank {victim} ({where}{', over ' + over if over else ''})"
    saved = os.path.join(folder, f"{name}-{how}-{victim}-{where}".replace(":", "-"))
    words = [*TRAIN, "--ranks", "2", "--steps", "40" if where.startswith("close") else "1000000", "--save", saved, "--save-every", "4"]
    path = {"OPIPE_PLUGIN_PATH": os.path.join(BUILD, "lib", "onnx-pipe") + ":" + PLUGINS}
    fault = {"OPIPE_FAULT": f"{how}@{where}", "OPIPE_FAULT_PROCESS": str(victim)}
    fault.update({"OPIPE_FAULT_OVER": over} if over else {})
    job = Launched(name, 2, *words, "--transport", "impaired", more=dict(path, **fault))
    began = until(lambda: victim in job.processes() or job.main.poll() is not None, 60)
    if where == "outside" and until(lambda: steps_saved(saved) >= 4 or job.main.poll() is not None, 60):
        os.kill(job.processes()[victim], signal.SIGKILL)
    struck = began and until(lambda: victim not in job.processes(), 60)
    at = time.monotonic()
    gone = until(lambda: not job.processes(), 20)
    seconds = time.monotonic() - at
    status, text, _ = job.end(30)
    check(steps_saved(saved) >= 4, f"{what}: no checkpoint: {status}: {text[-2000:]}")
    check(struck and status not in (0, None), f"{what}: {status}: {text[-2000:]}")
    check(gone and seconds < 5 * SLOW, f"{what}: {seconds:.1f} s until all had ended")
    again = run(*TRAIN, "--ranks", "2", "--steps", "1", "--resume", saved)
    check(again.status == 0, f"{what}: the checkpoint does not load: {again.err}")


def all_ends(check, launchers, over=None):
    """Each launcher, each way in which a process may end, in either process."""
    ways = [("kill", "outside"), *((how, "send:900") for how in ("kill", "exit3", "exit0")), ("exit3", "close:1"), ("exit0", "close:1")]
    for name in launchers:
        with tempfile.TemporaryDirectory() as folder:
            for how, where in ways:
                for victim in (0, 1):
                    launcher_ends(check, name, how, where, victim, folder, over)


# ---- NaN ----

def lines_of(text):
    return [re.sub(r"\[rank \d+\] |\d+\.\d+ ms", "", line) for line in text.splitlines() if "not finite" in line or "NaN" in line or "nan" in line]


def spoil(check, phase, *more, over=None):
    """The loss or norm of a step is not finite: everyone ends as one process does, and nothing is saved over."""
    apart, together = OVER[over]
    step = 1 if phase == "warm-up" else 3
    with tempfile.TemporaryDirectory() as folder:
        model = write_model(os.path.join(folder, "model.onnx"))
        data = write_data(folder, spoiled=(4 * (step - 1) + 1,))
        schedule = "chimera" if phase == "reduction" else "1f1b"
        words = ["train", model, *data, "--batch", "4", "--microbatches", "4", "--steps", "4", "--ranks", "2", "--schedule", schedule, *more]
        saved = [os.path.join(folder, name) for name in ("threads", "processes")]
        one = run(*words, *together, *(["--save", saved[0], "--save-every", "1"] if phase == "save" else []))
        ended = Job(2, *words, *apart, *(["--save", saved[1], "--save-every", "1"] if phase == "save" else [])).end()
        what = f"NaN at {phase} {more}{' over ' + over if over else ''}"
        check(one.status == 1 and lines_of(one.err), f"{what}: threads: {one.status}: {one.err}")
        for rank, (status, text, _) in enumerate(ended):
            check(status == 1, f"{what}, process {rank}: {status}: {text}")
            check(rank != 0 or set(lines_of(one.err)) <= set(lines_of(text)), f"{what}: threads said {lines_of(one.err)}, process 0 {text}")
        if phase == "save":
            # A process has shards of its own, of the same generation.
            files = [{re.sub(r"(-\d+)(-\d+)?\.", r"\1.", name) for name in os.listdir(s)} for s in saved]
            check(all(os.path.exists(os.path.join(s, "manifest.json")) for s in saved) and files[0] == files[1], f"{what}: saved: {files}")


def try_cases(check, cases, at_once=2, over=None):
    """Each case in a thread: most of them wait."""
    shm = set(os.listdir("/dev/shm"))

    def one(case):
        fault, phase = case[:2]
        began = time.monotonic()
        reason = None
        if fault == "NaN":
            spoil(check, phase, *case[2:], over=over)
        else:
            reason = strike(check, fault, phase, case[2] if len(case) > 2 else None, over)
        print(f"SKIP: {reason}" if reason else f"{fault}, {phase}: {time.monotonic() - began:.1f} s", flush=True)

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(one, case) for case in cases]:
            done.result()
    check(set(os.listdir("/dev/shm")) <= shm, f"left in /dev/shm: {set(os.listdir('/dev/shm')) - shm}")
