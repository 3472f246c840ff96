# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180
"""run and train as processes of one machine: losses, weights and outputs have the bits of the same plan run by threads; a death, a silence, a
signal and a refusal are every process's, in time."""
import filecmp
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from command import COMMAND, DATA, SANITIZED
from team_kit import tensors

wrong = []
SLOW = 5 if SANITIZED else 1
DEMO = os.path.join(DATA, "demo", "model.onnx")
GPT = os.path.join(DATA, "gpt_8block", "model.onnx")
TRAIN = ["train", DEMO, "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss",
         "cross-entropy:logits=logits,labels=labels,shift=1", "--batch", "4", "--microbatches", "4"]
jobs = [0]


def check(holds, what):
    if not holds:
        wrong.append(what)
        print("WRONG: " + what)


def command(*words):
    return subprocess.run([COMMAND, *words], capture_output=True, text=True, timeout=120)


def launch(n, *words):
    return command("launch", "-n", str(n), "--", *words)


def steps(done):
    """Losses and norms of a run that printed JSON, with or without launch's "[rank 0] "."""
    text = re.sub(r"(?m)^\[rank 0\] ", "", done.stdout)
    return [(s["step"], s["loss"], s["gradient_norm"]) for s in json.loads(text)["steps"]]


def same_files(one, other):
    names = sorted(os.listdir(one))
    return names == sorted(os.listdir(other)) and names and not any(filecmp.cmpfiles(one, other, names, shallow=False)[1:])


def test_training_has_the_bits_of_threads():
    cases = [(2, 2, "gpipe"), (4, 4, "1f1b"), (2, 4, "1f1b"), (2, 4, "2bw"), (2, 4, "chimera"), (4, 4, "zb-h1"), (2, 4, "interleaved")]
    for processes, ranks, schedule in cases:
        what = f"{schedule}, {ranks} ranks in {processes} processes"
        with tempfile.TemporaryDirectory() as folder:
            own, other = os.path.join(folder, "threads"), os.path.join(folder, "processes")
            rest = ["--steps", "4", "--ranks", str(ranks), "--schedule", schedule, "--json"]
            threads = command(*TRAIN, *rest, "--save", own)
            check(threads.returncode == 0, f"{what}: threads: {threads.stderr}")
            done = launch(processes, *TRAIN, *rest, "--save", other)
            check(done.returncode == 0, f"{what}: {done.stderr}")
            if threads.returncode != 0 or done.returncode != 0:
                continue
            check(len(steps(done)) == 4 and steps(done) == steps(threads), f"{what}: losses or norms differ")
            check(tensors(own) == tensors(other), f"{what}: weights or moments differ")


def test_a_checkpoint_goes_on_in_other_numbers_of_processes():
    with tempfile.TemporaryDirectory() as folder:
        saved = os.path.join(folder, "saved")
        first = launch(2, *TRAIN, "--steps", "2", "--ranks", "4", "--save", saved)
        check(first.returncode == 0, f"saving: {first.stderr}")
        rest = ["--steps", "2", "--ranks", "4", "--json", "--resume", saved]
        threads = command(*TRAIN, *rest)
        for processes in (2, 4):
            done = launch(processes, *TRAIN, *rest)
            check(done.returncode == 0 and steps(done) == steps(threads), f"resumed in {processes} processes: {done.stderr}")


def test_outputs_have_the_bits_of_threads():
    for processes, more in ((2, []), (4, ["--requests", "8"]), (2, ["--ranks", "4", "--bind", "batch=4", "--microbatches", "4"])):
        with tempfile.TemporaryDirectory() as folder:
            own, other = os.path.join(folder, "threads"), os.path.join(folder, "processes")
            ranks = [] if "--ranks" in more else ["--ranks", str(processes)]
            threads = command("run", GPT, *more, *ranks, "-o", own)
            done = launch(processes, "run", GPT, *more, "-o", other)
            check(threads.returncode == 0 and done.returncode == 0, f"run {more}: {threads.stderr}{done.stderr}")
            check(done.returncode != 0 or same_files(own, other), f"run {more}: outputs differ")
            check(len(re.findall(r"(?m)^\[rank \d\] output logits", done.stdout)) == 1, f"run {more}: not printed once")


def test_refusals():
    """Every process gives the same reason, with both numbers."""
    three = launch(2, "run", GPT, "--stages", "3")
    check(three.returncode == 3 and three.stderr.count("the plan has 3 ranks, the team 2 processes") == 2, f"3 ranks: {three.stderr}")
    rows = launch(2, "run", GPT, "--bind", "batch=4", "--microbatches", "4", "--replicas", "2", "--ranks", "4")
    check(rows.returncode == 2 and "stage 0 has replicas in several of 2 processes" in rows.stderr, f"rows: {rows.stderr}")
    local = launch(2, "run", GPT, "--transport", "local")
    check(local.returncode == 3, f"local: {local.stderr}")
    alone = launch(2, *TRAIN, "--steps", "1", "--reference")
    check(alone.returncode == 2 and "this is one of 2 processes" in alone.stderr, f"reference: {alone.stderr}")
    each = launch(2, "run", GPT, "--launcher", "none")
    check(each.returncode == 0 and each.stdout.count("output logits") == 2, f"none: {each.stderr}")


class Job:
    """Processes as a launcher starts them, without one."""

    def __init__(self, n, *words, more=None):
        jobs[0] += 1
        self.all = []
        for rank in range(n):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + jobs[0]),
                       TORCHELASTIC_RUN_ID=f"test-{os.getpid()}")
            own = list(more[rank]) if more else []
            self.all.append(subprocess.Popen([COMMAND, *words, *own], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))

    def until_it_trains(self):
        for line in self.all[0].stdout:
            if line.startswith("step 2 "):
                return True
        return False

    def end(self, but=None, timeout=40):
        """[(status, error text, seconds)] of all but one."""
        began, ended = time.monotonic(), []
        for rank, process in enumerate(self.all):
            if rank == but:
                ended.append(None)
                continue
            try:
                _, err = process.communicate(timeout=timeout)
                ended.append((process.returncode, err, time.monotonic() - began))
            except subprocess.TimeoutExpired:
                ended.append((None, "it hangs", timeout))
        for process in self.all:
            if process.poll() is None:
                process.kill()
                process.communicate()
        return ended


def test_plans_that_differ():
    """Process 0 makes the plan; options, models and plan files that differ are refused everywhere, with both sides."""
    with tempfile.TemporaryDirectory() as folder:
        files = [os.path.join(folder, f"{depth}.json") for depth in (2, 3)]
        for depth, file in zip((2, 3), files):
            made = command("plan", GPT, "--stages", "2", "--depth", str(depth), "--transport", "shm", "-o", file)
            check(made.returncode == 0, made.stderr)
        cases = {
            "options": ([[], ["--depth", "3"]], "process 0 asks for depth 0, process 1 for depth 3"),
            "schedules": ([["--schedule", "gpipe"], []], "process 0 asks for schedule 'gpipe', process 1 for schedule not given"),
            "files": ([["--plan", files[0]], ["--plan", files[1]]], r"process 0 has plan [0-9a-f]{32}, process 1 [0-9a-f]{32}"),
        }
        for what, (more, says) in cases.items():
            ranks = [] if what == "files" else ["--stages", "2"]
            for rank, (status, err, _) in enumerate(Job(2, "run", GPT, *ranks, more=more).end()):
                check(status == 3 and re.search(says, err), f"{what}, process {rank}: {status} {err}")
    for rank, (status, err, _) in enumerate(Job(2, "run", more=[[GPT], [DEMO]]).end()):
        check(status == 3 and re.search(r"process 0 has model [0-9a-f]{32}, process 1 [0-9a-f]{32}", err), f"models, process {rank}: {status} {err}")


def other_weights(path, out):
    """The model with one byte of its largest initializer changed: field 9 of a TensorProto, raw_data."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    best = (0, 0)
    for at in range(len(data) - 4):
        if data[at] == 0x4A:
            n = shift = 0
            end = at + 1
            while end < len(data) and shift < 35:
                n |= (data[end] & 0x7F) << shift
                shift += 7
                end += 1
                if data[end - 1] < 0x80:
                    break
            if end + n <= len(data) and n % 4 == 0 and best[0] < n < len(data) // 2:
                best = (n, end)
    data[best[1] + 5] ^= 1
    with open(out, "wb") as file:
        file.write(data)


def test_weights_that_differ():
    """Parameters that several processes hold have one value in all; those that one process holds are not compared."""
    with tempfile.TemporaryDirectory() as folder:
        other = os.path.join(folder, "other.onnx")
        other_weights(GPT, other)
        train = ["train", "--data", "text:" + os.path.join(DATA, "text", "ferry.txt"), "--loss", "cross-entropy:logits=logits,labels=labels,shift=1",
                 "--batch", "4", "--microbatches", "2", "--steps", "1", "--ranks", "2", "--replicas", "2"]
        for more, fails in (([[GPT], [other]], True), ([[GPT], [GPT]], False)):
            for rank, (status, err, _) in enumerate(Job(2, *train, more=more).end()):
                said = re.search(r"parameter '\S+' has the hash [0-9a-f]{32} in process 0 and [0-9a-f]{32} in process 1", err)
                check((status == 3 and said) if fails else status == 0, f"weights, process {rank}: {status} {err}")


def test_places():
    """Ranks where --place says have the bits of threads; places that do not fit are refused."""
    rest = ["--steps", "2", "--ranks", "4", "--json"]
    threads = command(*TRAIN, *rest)
    for place in ("0,3/1,2", "1/0,2,3"):
        done = launch(2, *TRAIN, *rest, "--place", place)
        check(done.returncode == 0 and steps(done) == steps(threads), f"--place {place}: {done.stderr}")
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "plan.json")
        check(command("plan", GPT, "--stages", "3", "--transport", "shm", "-o", file).returncode == 0, "plan")
        done = launch(2, "run", GPT, "--plan", file, "--place", "0,2/1")
        check(done.returncode == 0 and "[rank 0] output logits" in done.stdout, f"--plan --place: {done.stderr}")
    for place, says in (("0,1", "the ranks of 1 processes, the team has 2"), ("0/1/2", "the ranks of 3 processes, the team has 2"),
                        ("0,1/1", "rank 1 is given twice"), ("0/2", "rank 2 of 2"), ("0/x", "'x' is not a list of ranks")):
        done = launch(2, "run", GPT, "--place", place)
        check(done.returncode == 2 and done.stderr.count(says) == 2, f"--place {place}: {done.returncode} {done.stderr}")
    fewer = launch(2, "run", GPT, "--stages", "3", "--place", "0/1")
    check(fewer.returncode == 3 and fewer.stderr.count("the places of 2 ranks are given, the plan has 3") == 2, f"fewer: {fewer.stderr}")


def test_a_planner_decides_once():
    """Process 0 asks the planner, and all get its plan or its refusal."""
    done = launch(2, *TRAIN, "--steps", "2", "--auto", "--device", "cpu,threads=1", "--device", "cpu,threads=1", "--json")
    check(done.returncode == 0 and len(steps(done)) == 2, f"--auto: {done.stderr}")
    none = launch(2, *TRAIN, "--steps", "2", "--auto", "--memory", "1KiB", "--ranks", "2")
    check(none.returncode != 0 and re.search(r"(?m)^\[rank 1\] .*process 0 \(pid ", none.stderr), f"--auto without room: {none.returncode} {none.stderr}")


def test_a_death_is_named_everywhere():
    for victim in (0, 1, 2):
        job = Job(3, *TRAIN, "--steps", "1000000", "--ranks", "3")
        check(job.until_it_trains(), f"{victim}: nothing trains")
        pid = job.all[victim].pid
        job.all[victim].kill()
        for rank, (status, err, seconds) in enumerate(job.end()):
            if rank == victim:
                continue
            named = f"process {victim} (pid {pid})" in err or f"rank {victim}" in err or f"ranks {victim}" in err
            check(status == 3 and named and seconds < 2 * SLOW, f"{victim} is killed, process {rank}: {status}, {seconds:.1f} s, {err}")


def test_a_silence_is_named():
    job = Job(2, *TRAIN, "--steps", "1000000")
    check(job.until_it_trains(), "nothing trains")
    job.all[1].send_signal(signal.SIGSTOP)
    status, err, seconds = job.end(but=1)[0]
    check(status == 3 and f"process 1 (pid {job.all[1].pid}) has been silent" in err and seconds < 12 * SLOW, f"silence: {status}, {seconds:.1f} s, {err}")


def test_one_signal_stops_all_at_one_step():
    for number, victim in ((signal.SIGTERM, 1), (signal.SIGINT, 0)):
        with tempfile.TemporaryDirectory() as folder:
            saved = os.path.join(folder, "saved")
            job = Job(2, *TRAIN, "--steps", "1000000", "--save", saved)
            check(job.until_it_trains(), "nothing trains")
            job.all[victim].send_signal(number)
            ended = job.end()
            after = [re.search(r"stopped after (\d+) of", err) for _, err, _ in ended]
            check([status for status, _, _ in ended] == [128 + number] * 2, f"{number.name}: {ended}")
            check(all(after) and len({a[1] for a in after}) == 1, f"{number.name}: {ended}")
            check(os.path.exists(os.path.join(saved, "manifest.json")), f"{number.name}: nothing was saved")


for name, test in sorted(globals().items()):
    if name.startswith("test_"):
        began = time.monotonic()
        test()
        print(f"{name}: {time.monotonic() - began:.1f} s")
sys.exit(1 if wrong else 0)
