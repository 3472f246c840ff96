# SPDX-License-Identifier: Apache-2.0
"""The engines that are compared, each in a process of its own that idles until it is told to run.

`Worker` is the driver's end; `serve` is the other one. A turn returns the seconds of every run, or
of a whole stream of requests, and how much of a core other processes took meanwhile.
Engines: `pipe` is onnx-pipe through its C interface, the others are ONNX Runtime:
  ort     one session, requests one by one        callers  one session, one caller per thread
  cut     two sessions cut by hand, one thread each, joined by a queue of two
"""
import importlib
import json
import os
import queue
import subprocess
import sys
import threading
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
TICKS = os.sysconf("SC_CLK_TCK")
VOCABULARY = {"gpt2_small": 50257, "bert_base": 30522, "small": 8192, "small_past": 8192}
# Models that read numbers: the input and its sizes behind the free dimensions.
PICTURE = ("pixel_values", (3, 224, 224))
NUMBERS = {"resnet50": PICTURE, "mobilenet_v3": PICTURE, "wav2vec2": ("input_values", ()), "moe_block": ("hidden", (2048,))}
PAST = [f"past_{kind}_{i}" for i in range(4) for kind in "kv"]


def given(job):
    """The inputs of a job: those of a file (.npz), or seeded ones."""
    if "inputs" in job:
        with np.load(job["inputs"]) as arrays:
            return dict(arrays)
    return feeds(job["model"], job["dims"])


def feeds(model, dims):
    """Seeded inputs of a request: {name: array}. NAME-int8 has the inputs of NAME."""
    rng = np.random.default_rng(3)
    model = model.split("-")[0]
    if model in NUMBERS:
        name, sizes = NUMBERS[model]
        return {name: rng.standard_normal([*dims.values(), *sizes], dtype=np.float32)}
    shape = (dims["batch"], dims["seq"])
    inputs = {"input_ids": rng.integers(0, VOCABULARY[model], shape)}
    if model == "bert_base":
        inputs["attention_mask"] = np.ones(shape, np.int64)
        inputs["token_type_ids"] = np.zeros(shape, np.int64)
    if model == "small_past":
        past = (dims["batch"], 4, dims["past"], 64)
        inputs.update({name: rng.standard_normal(past, dtype=np.float32) for name in PAST})
    return inputs


class Ort:
    """ONNX Runtime with all graph optimisations; inputs and outputs are bound once."""

    def __init__(self, job):
        self.inputs = given(job)
        self.session = self.open(job["path"], job["threads"])
        self.binding = self.bind(self.session, self.inputs)

    @staticmethod
    def open(path, threads):
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    @staticmethod
    def bind(session, inputs):
        """The first run shows the outputs' shapes; their memory is then used again and again."""
        import onnxruntime as ort

        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        names = [output.name for output in session.get_outputs()]
        for name, array in zip(names, session.run(names, inputs)):
            binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
        return binding

    def run(self):
        self.session.run_with_iobinding(self.binding)

    def result(self):
        return self.binding.copy_outputs_to_cpu()[0]

    def stream(self, count):
        for _ in range(count):
            self.run()

    def close(self):
        pass


class Callers(Ort):
    """One session with one compute thread per call; as many callers as threads, weights shared."""

    def __init__(self, job):
        super().__init__(dict(job, threads=1))
        self.bindings = [self.bind(self.session, self.inputs) for _ in range(job["threads"])]

    def stream(self, count):
        share = count // len(self.bindings)

        def calls(binding):
            for _ in range(share):
                self.session.run_with_iobinding(binding)

        in_threads(*(lambda b=b: calls(b) for b in self.bindings))


class Cut(Ort):
    """Two stages by hand: a thread for each session, a queue of two hidden states between them."""

    def __init__(self, job):
        import onnxruntime as ort

        self.inputs = given(job)
        self.values = {n: ort.OrtValue.ortvalue_from_numpy(a) for n, a in self.inputs.items()}
        self.tensor = job["tensor"]
        self.first, self.second = (self.open(path, job["threads"]) for path in job["path"])
        self.wanted = [value.name for value in self.second.get_inputs()]
        self.outputs = [value.name for value in self.second.get_outputs()]
        self.last = None

    def head(self):
        return self.first.run_with_ort_values([self.tensor], self.values)[0]

    def tail(self, hidden):
        values = {n: hidden if n == self.tensor else self.values[n] for n in self.wanted}
        self.last = self.second.run_with_ort_values(self.outputs, values)

    def run(self):
        self.tail(self.head())

    def result(self):
        return self.last[0].numpy()

    def stream(self, count):
        between = queue.Queue(2)

        def first():
            for _ in range(count):
                between.put(self.head())

        def second():
            for _ in range(count):
                self.tail(between.get())

        in_threads(first, second)


class Pipe:
    """onnx-pipe: caller's buffers for the outputs, one set for every request in flight. A single rank
    runs on the caller's thread (threads=host), as the other engines do."""

    def __init__(self, job):
        sys.path.insert(0, os.path.join(HERE, "..", "examples"))
        import host_numpy

        replicas = job.get("replicas", 1)
        self.slots = 2 * job["stages"] * replicas
        self.pipeline = host_numpy.Pipeline(
            host_numpy.Library(job["library"]),
            job["path"],
            job["dims"],
            job["stages"],
            job["threads"],
            self.slots,
            host=job["stages"] * replicas == 1,
            replicas=replicas,
        )
        self.inputs = given(job)
        # Where outputs are not all of float32 they stay the library's.
        shapes = self.pipeline.outputs if job.get("buffers", True) else []
        self.outputs = [
            {n: np.zeros(shape, np.float32) for n, shape in shapes} for _ in range(self.slots)
        ]

    def run(self):
        self.pipeline.finish(self.pipeline.submit(self.inputs, self.outputs[0]))

    def result(self):
        return self.outputs[0][self.pipeline.outputs[0][0]]

    def stream(self, count):
        flying = []
        for i in range(count):
            started = None
            if len(flying) == self.slots:
                self.pipeline.finish(flying.pop(0))
            while started is None:  # the session may have room for fewer than there are buffers
                started = self.pipeline.submit(self.inputs, self.outputs[i % self.slots])
                if started is None:
                    self.pipeline.finish(flying.pop(0))
            flying.append(started)
        for request in flying:
            self.pipeline.finish(request)

    def close(self):
        self.pipeline.close()


ENGINES = {"ort": Ort, "callers": Callers, "cut": Cut, "pipe": Pipe}


def in_threads(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def busy_seconds():
    """CPU seconds that all processes of the machine have used."""
    with open("/proc/stat", encoding="ascii") as file:
        numbers = [int(x) for x in file.readline().split()[1:9]]
    return (sum(numbers) - numbers[3] - numbers[4]) / TICKS


def peak_mib():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM"))


def timed(engine, order):
    seconds = []
    if order["what"] == "stream":
        start = time.perf_counter()
        engine.stream(order["count"])
        return [time.perf_counter() - start]
    for _ in range(order["count"]):
        start = time.perf_counter()
        engine.run()
        seconds.append(time.perf_counter() - start)
    return seconds


def own_seconds(engine):
    """Processor time of the engine, with that of processes that it drives."""
    return time.process_time() + getattr(engine, "children_seconds", 0.0)


def turn(engine, order):
    busy, own, wall = busy_seconds(), own_seconds(engine), time.perf_counter()
    seconds = timed(engine, order)
    wall = time.perf_counter() - wall
    others = busy_seconds() - busy - (own_seconds(engine) - own)
    # /proc/stat counts in hundredths: shorter turns than that say nothing about others.
    return {
        "seconds": seconds,
        "others": max(0.0, others / max(wall, 0.05)),
        "peak_mib": getattr(engine, "peak_mib", 0) or peak_mib(),
    }


def serve():
    """Reads one job, then orders, as lines of JSON; answers each with one line."""
    sys.dont_write_bytecode = True
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    job = json.loads(sys.stdin.readline())
    engine = None
    try:
        if job["engine"] not in ENGINES:
            ENGINES.update(importlib.import_module(job.get("module", "training_engines")).ENGINES)
        for module in job.get("modules", []):  # what they take is no engine's
            importlib.import_module(module)
        bare, start = peak_mib(), time.perf_counter()
        engine = ENGINES[job["engine"]](job)
        engine.run()
        answer = {"load_seconds": time.perf_counter() - start, "bare_mib": bare}
        if job.get("save"):
            np.save(job["save"], engine.result())
    except Exception as reason:  # whatever stops an engine is a row of the table
        answer = {"error": str(reason).splitlines()[0][:200]}
    print(json.dumps(answer), file=answers, flush=True)
    if "error" not in answer:
        for line in sys.stdin:
            print(json.dumps(turn(engine, json.loads(line))), file=answers, flush=True)
        if job.get("save_at_end"):
            np.save(job["save_at_end"], engine.result())
        engine.close()


class Worker:
    """One engine in a process; `error` tells why there is none."""

    def __init__(self, job):
        command = [sys.executable, os.path.abspath(__file__)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        answer = self.ask(job)
        self.error, self.load_seconds = answer.get("error"), answer.get("load_seconds")
        self.peak_mib, self.bare_mib = 0, answer.get("bare_mib", 0)

    def ask(self, message):
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        return json.loads(line) if line else {"error": f"ended with {self.process.wait()}"}

    def turn(self, what, count):
        answer = self.ask({"what": what, "count": count})
        if "error" in answer:
            raise RuntimeError(answer["error"])
        self.peak_mib = answer["peak_mib"]
        return answer["seconds"], answer["others"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


if __name__ == "__main__":
    serve()
