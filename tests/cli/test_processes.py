# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=180 waits
"""run and train as processes of one machine: losses, weights and outputs have the bits of the same plan run by threads; a death, a silence, a
signal and a refusal are every process's, in time."""
import filecmp
import json
import os
import re
import resource
import shutil
import signal
import struct
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


def test_tensor_groups_have_the_bits_of_threads():
    for processes, tensor in ((2, "2"), (4, "2,sequence=1")):
        rest = ["--steps", "2", "--tensor", tensor, "--ranks", str(processes), "--clip", "0.5", "--json"]
        threads, done = command(*TRAIN, *rest), launch(processes, *TRAIN, *rest)
        check(threads.returncode == 0 and done.returncode == 0, f"--tensor {tensor}: {threads.stderr}{done.stderr}")
        check(done.returncode != 0 or len(steps(done)) == 2 and steps(done) == steps(threads), f"--tensor {tensor}: losses or norms differ")


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
    rows = ["--ranks", "4", "--bind", "batch=4", "--microbatches", "4"]
    for processes, more in ((2, []), (4, ["--requests", "8"]), (2, rows), (2, [*rows, "--replicas", "2"])):
        with tempfile.TemporaryDirectory() as folder:
            own, other = os.path.join(folder, "threads"), os.path.join(folder, "processes")
            ranks = [] if "--ranks" in more else ["--ranks", str(processes)]
            threads = command("run", GPT, *more, *ranks, "-o", own)
            done = launch(processes, "run", GPT, *more, "-o", other)
            check(threads.returncode == 0 and done.returncode == 0, f"run {more}: {threads.stderr}{done.stderr}")
            check(done.returncode != 0 or same_files(own, other), f"run {more}: outputs differ")
            check(len(re.findall(r"(?m)^\[rank 0\] output logits", done.stdout)) == 1, f"run {more}: not printed once, by process 0")
    past = os.path.join(DATA, "gpt_past", "model.onnx")  # outputs of every stage
    done, threads = launch(2, "run", past, "--json"), command("run", past, "--ranks", "2", "--json")
    outputs = [json.loads(re.sub(r"(?m)^\[rank 0\] ", "", text))["outputs"] if text else [] for text in (done.stdout, threads.stdout)]
    check(done.returncode == 0 and outputs[0] == outputs[1] and len(outputs[0]) > 1, f"run --json: {done.stderr}")
    where = launch(2, "run", GPT)
    check(len(re.findall(r"(?m)^\[rank 1\] output logits", where.stdout)) == 1, f"run: not printed where it is made: {where.stdout}{where.stderr}")


def lanes(path):
    """Ranks with measured boxes in a trace, and the number of these."""
    with open(path, encoding="utf-8") as file:
        boxes = [e for e in json.load(file)["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    return {e["tid"] for e in boxes}, len(boxes)


def test_gradients_references_and_traces():
    """Process 0 writes what the ranks of all have: the same gradients, boxes for every rank; the reference is compared with all."""
    with tempfile.TemporaryDirectory() as folder:
        own, other = ({name: os.path.join(folder, f"{who}.{name}") for name in ("gradients", "json")} for who in ("threads", "processes"))
        rest = ["--steps", "2", "--ranks", "4"]
        for what, run, files in (("threads", command, own), ("processes", lambda *words: launch(2, *words), other)):
            done = run(*TRAIN, *rest, "--reference", "--save-gradients", files["gradients"], "--trace", files["json"])
            check(done.returncode == 0, f"{what}: {done.stdout}{done.stderr}")
            check(len(re.findall(r"plan's reference +bit-equal", done.stdout)) == 1, f"{what}: {done.stdout}")
        if all(os.path.exists(path) for path in (*own.values(), *other.values())):
            check(filecmp.cmp(own["gradients"], other["gradients"], shallow=False), "gradients differ")
            check(lanes(own["json"]) == lanes(other["json"]) and len(lanes(other["json"])[0]) >= 4, f"traces: {lanes(own['json'])} {lanes(other['json'])}")
        else:
            check(False, f"written: {os.listdir(folder)}")
        for words in (["--bind", "batch=2", "--microbatches", "2"], ["--requests", "3"]):
            trace = os.path.join(folder, f"{len(words)}.json")
            done = launch(2, "run", GPT, *words, "--ranks", "4", "--reference", "--trace", trace)
            check(done.returncode == 0 and done.stdout.count("identical to the plan's reference") == 1, f"run {words}: {done.stdout}{done.stderr}")
            check(os.path.exists(trace) and len(lanes(trace)[0]) >= 4, f"run {words}: no boxes for all ranks")


def test_a_folder_is_checked_by_all():
    """Each process compares the outputs that it has; the verdict, and the status, are everybody's."""
    with tempfile.TemporaryDirectory() as folder:
        made, data = os.path.join(folder, "made"), os.path.join(folder, "test_data_set_0")
        check(command("run", GPT, "--input", "input_ids=" + ids(folder), "-o", made).returncode == 0, "outputs")
        os.mkdir(data)
        shutil.copy(GPT, os.path.join(folder, "model.onnx"))
        tensor(os.path.join(data, "input_0.pb"), "input_ids", 7, os.path.join(folder, "ids.npy"))
        for wrong_by in (0, 1):
            tensor(os.path.join(data, "output_0.pb"), "logits", 1, os.path.join(made, "logits.npy"), wrong_by)
            done = launch(2, "run", folder, "--check")
            said = "FAILED" if wrong_by else "passed"
            check(done.returncode == wrong_by and f"[rank 0] test_data_set_0: {said}" in done.stdout, f"{said}: {done.returncode} {done.stdout}{done.stderr}")
            check("[rank 1] test_data_set_0" not in done.stdout, f"{said}: printed twice")


def test_refusals():
    """Every process gives the same reason, with both numbers."""
    three = launch(2, "run", GPT, "--stages", "3")
    check(three.returncode == 3 and three.stderr.count("the plan has 3 ranks, the team 2 processes") == 2, f"3 ranks: {three.stderr}")
    local = launch(2, "run", GPT, "--transport", "local")
    check(local.returncode == 3, f"local: {local.stderr}")
    each = launch(2, "run", GPT, "--launcher", "none")
    check(each.returncode == 0 and each.stdout.count("output logits") == 2, f"none: {each.stderr}")


class Job:
    """Processes as a launcher starts them, without one."""

    def __init__(self, n, *words, more=None, before=None):
        jobs[0] += 1
        self.all = []
        for rank in range(n):
            env = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(20000 + jobs[0]),
                       TORCHELASTIC_RUN_ID=f"test-{os.getpid()}")
            own = list(more[rank]) if more else []
            self.all.append(subprocess.Popen([COMMAND, *words, *own], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                             preexec_fn=before if rank == 0 else None))

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


def npy(path):
    """Shape and bytes of a .npy file."""
    with open(path, "rb") as file:
        data = file.read()
    n = int.from_bytes(data[8:10], "little")
    return [int(d) for d in re.search(rb"'shape': \(([^)]*)\)", data[:10 + n])[1].replace(b",", b" ").split()], data[10 + n:]


def ids(folder):
    """A .npy file of token ids [1, 8]."""
    path, head = os.path.join(folder, "ids.npy"), b"{'descr': '<i8', 'fortran_order': False, 'shape': (1, 8), }"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + head.ljust(117) + b"\n" + struct.pack("<8q", *range(3, 27, 3)))
    return path


def tensor(path, name, dtype, source, wrong_by=0):
    """A serialised TensorProto of a .npy file's bytes, with its first element off by so much."""
    shape, data = npy(source)

    def field(number, kind, value):
        out = bytes([number << 3 | kind])
        while value >= 0x80:
            out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
        return out + bytes([value])

    if wrong_by:
        data = struct.pack("<f", struct.unpack("<f", data[:4])[0] + wrong_by) + data[4:]
    with open(path, "wb") as file:
        file.write(b"".join(field(1, 0, d) for d in shape) + field(2, 0, dtype) + field(8, 2, len(name)) + name.encode() + field(9, 2, len(data)) + data)


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


def little_disk():
    """Files of at most 40,000 bytes, as on a full disk: an error, not a signal."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40000, 40000))


def test_a_failure_of_one_ends_all():
    """Process 0 cannot save: the other one does not wait for its next step."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(2, *TRAIN, "--steps", "1000000", "--save", os.path.join(folder, "saved"), "--save-every", "4", before=little_disk)
        for rank, (status, err, seconds) in enumerate(job.end()):
            check(status == 3 and seconds < 10 * SLOW, f"full disk, process {rank}: {status}, {seconds:.1f} s, {err}")
            check(rank == 0 or "process 0 (pid " in err or "rank 0" in err, f"full disk, process {rank}: {err}")


def test_a_silence_is_named():
    job = Job(2, *TRAIN, "--steps", "1000000")
    check(job.until_it_trains(), "nothing trains")
    job.all[1].send_signal(signal.SIGSTOP)
    status, err, seconds = job.end(but=1)[0]
    check(status == 3 and f"process 1 (pid {job.all[1].pid}) has been silent" in err and seconds < 12 * SLOW, f"silence: {status}, {seconds:.1f} s, {err}")


def test_a_rank_that_stalls_is_named_everywhere():
    """All four processes answer, and one rank's device does not: the end of those that wait for each other is everybody's error."""
    devices = [word for rank in range(4) for word in ("--device", "emulated" + (",stall_run=30:30000" if rank == 2 else ""))]
    job = Job(4, *TRAIN, "--steps", "1000", "--ranks", "4", *devices, "--silence", str(2 * SLOW))
    check(job.until_it_trains(), "nothing trains")
    pid = job.all[2].pid
    for rank, ended in enumerate(job.end(but=2)):
        status, err, seconds = ended or (3, f"rank 2 of process 2 (pid {pid}) has been in the forward of stage 2 (", 0)
        named = re.search(rf"rank 2 of process 2 \(pid {pid}\) has been in the (input )?(forward|backward|weight backward) of stage 2 \(", err)
        check(status == 3 and named and seconds < 4 * SLOW + 1, f"stall, process {rank}: {status}, {seconds:.1f} s, {err}")


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
