# SPDX-License-Identifier: Apache-2.0
"""Inside Triton: a server with our backend and its clients.

    PYTHON_WITH_TRITONCLIENT clients.py SERVER BUILD_DIR WORK_DIR [TEST...]

WORK_DIR holds what test_server.py prepared: NAME/model.onnx, and NAME.npz with its inputs and outputs. Prints what
failed; the exit status is the number of failures.
"""

import glob
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

SERVER, BUILD, WORK = sys.argv[1:4]
failures = []


def check(good, *what):
    if not good:
        failures.append(" ".join(str(part) for part in what))
        print("FAILED:", failures[-1])


class Server:
    """One with its own repository; nothing is loaded until it is asked for."""

    def __init__(self, name, **options):
        self.folder = os.path.join(WORK, "repository-" + name)
        self.clients = []
        self.log = os.path.join(WORK, name + ".log")
        os.makedirs(self.folder)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [SERVER, "--model-repository=" + self.folder, "--model-control-mode=explicit"]
        command += ["--backend-directory=" + os.path.join(BUILD, "lib", "triton")]
        command += ["--http-address=127.0.0.1", "--http-port=%d" % self.port]
        command += ["--allow-grpc=false", "--allow-metrics=false", "--exit-timeout-secs=20"]
        command += ["--backend-config=onnxpipe,%s=%s" % (k.replace("_", "-"), v) for k, v in options.items()]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        for _ in range(400):
            try:
                if self.client().is_server_live():
                    return
            except OSError:
                pass
            if self.process.poll() is not None:
                break
            time.sleep(0.05)
        with open(self.log, encoding="utf-8", errors="replace") as log:
            raise RuntimeError("the server does not start: " + log.read()[-2000:])

    def client(self, concurrency=1):
        made = http.InferenceServerClient("127.0.0.1:%d" % self.port, concurrency=concurrency, network_timeout=60)
        self.clients.append(made)
        return made

    def add(self, name, source, config="", **parameters):
        """source: a folder of WORK, its external data included."""
        folder = os.path.join(self.folder, name)
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(os.path.join(folder, "1"))
        for file in glob.glob(os.path.join(WORK, source, "*")):
            if os.path.isfile(file):
                shutil.copy(file, os.path.join(folder, "1"))
        text = 'backend: "onnxpipe"\n' + config
        for key, value in parameters.items():
            text += 'parameters { key: "%s" value { string_value: "%s" } }\n' % (key, value)
        with open(os.path.join(folder, "config.pbtxt"), "w", encoding="ascii") as file:
            file.write(text)

    def load(self, name, source, config="", **parameters):
        self.add(name, source, config, **parameters)
        self.client().load_model(name)

    def refuses(self, part, name, source, config="", **parameters):
        try:
            self.load(name, source, config, **parameters)
        except InferenceServerException as error:
            check(part in str(error), name, "says:", str(error)[:500], "not:", part)
            return
        check(False, name, "was accepted")

    def resident(self):
        with open("/proc/%d/statm" % self.process.pid, encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self):
        for client in self.clients:  # the server waits for those that are connected
            client.close()
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "it does not end"
        with open(self.log, encoding="utf-8", errors="replace") as log:
            check(status == 0, self.log, "ended with", status, log.read()[-1500:])


TYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32", "bool": "BOOL"}


def infer(client, name, arrays, wanted=None, binary=True):
    inputs = []
    for key, array in arrays.items():
        inputs.append(http.InferInput(key, list(array.shape), TYPES[str(array.dtype)]))
        inputs[-1].set_data_from_numpy(array, binary_data=binary)
    outputs = None if wanted is None else [http.InferRequestedOutput(w, binary_data=binary) for w in wanted]
    return client.infer(name, inputs, outputs=outputs)


def difference(found, wanted):
    if found is None or found.shape != wanted.shape:
        return float("inf")
    scale = float(numpy.max(numpy.abs(wanted)))
    away = numpy.max(numpy.abs(found.astype(numpy.float64) - wanted.astype(numpy.float64)))
    return float(away) / (scale + 1.0 if scale < 1 else scale)


def ids(rows, tokens, seed=0):
    numbers = numpy.arange(rows * tokens, dtype=numpy.int64).reshape(rows, tokens)
    return {"input_ids": (numbers * 7 + 3 + seed * 31) % 300}


def refused(what, part, call):
    try:
        call()
    except InferenceServerException as error:
        check(part in str(error), what, "says:", str(error)[:500], "not:", part)
        return
    check(False, what, "was accepted")


# ---- tests ----


def test_results(server):
    client = server.client()
    for path in sorted(glob.glob(os.path.join(WORK, "*.npz"))):
        name = os.path.basename(path)[:-4]
        data = dict(numpy.load(path))
        fed = {k[3:]: a for k, a in data.items() if k.startswith("in:")}
        half = name == "gpt_bf16"
        if half and any(a.dtype == numpy.float32 for a in fed.values()):
            continue  # the client has no such numbers
        for stages in (1, 2):
            server.load(name, name, stages=stages)
            found = infer(client, name, fed)
            for key, wanted in data.items():
                if key.startswith("out:") and not (half and found.get_output(key[4:])["datatype"] == "BF16"):
                    away = difference(found.as_numpy(key[4:]), wanted)
                    check(away <= (2e-2 if half else 1e-4), name, key, stages, "stages: differs by", away)
            client.unload_model(name)


def test_completed(server):
    """Fields that the configuration lacks come from the model."""
    client = server.client()
    server.load("gpt", "gpt_8block", stages=2)
    config = client.get_model_config("gpt")
    check(config["max_batch_size"] == 4 and "dynamic_batching" in config, "batches", config["max_batch_size"])
    check([(i["name"], i["data_type"], i["dims"]) for i in config["input"]] == [("input_ids", "TYPE_INT64", [-1])], config["input"])
    check([(o["name"], o["data_type"]) for o in config["output"]] == [("logits", "TYPE_FP32")], config["output"])
    server.load("single", "gpt_8block", 'max_batch_size: 0\ninput { name: "input_ids" data_type: TYPE_INT64 dims: [-1, -1] }\n')
    check(client.get_model_config("single")["max_batch_size"] == 0, "a batch that nobody wants")
    check([o["dims"][0] for o in client.get_model_config("single")["output"]] == [-1], "outputs")
    for binary in (True, False):
        one = infer(client, "gpt", ids(2, 9), binary=binary).as_numpy("logits")
        check(difference(infer(client, "single", ids(2, 9), ["logits"]).as_numpy("logits"), one) <= 1e-5, "single")
    server.load("shaped", "shaped")
    check(client.get_model_config("shaped")["max_batch_size"] == 0, "rows that are no batch")
    x = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    for shape in ((3, 2), (6, 1)):
        try:
            y = infer(client, "shaped", {"x": x, "shape": numpy.array(shape, numpy.int64)}).as_numpy("y")
            check(numpy.array_equal(y, -x.reshape(shape)), "shaped", y)
        except InferenceServerException as error:  # the value that the plan was made with is the plan's
            check(shape != (3, 2) and "shape" in str(error), "shaped", shape, error)


def test_clients(server):
    """Eight at a time, of shapes of all kinds: the dynamic batcher joins some; every answer is that of one alone."""
    shapes = [(1, 8), (2, 8), (1, 5), (3, 8), (1, 17), (4, 8)]
    server.load("many", "gpt_8block", "instance_group { count: 2 kind: KIND_CPU }\n", stages=2, threads=1, shapes=16)
    client = server.client()
    cases = [(shape, seed) for shape in shapes for seed in range(4)]
    alone = {c: infer(client, "many", ids(*c[0], seed=c[1])).as_numpy("logits") for c in cases}
    bad, answered = [], []

    def call(first):
        own = server.client()
        for i in range(24):
            shape, seed = cases[(first * 5 + i) % len(cases)]
            try:
                found = infer(own, "many", ids(*shape, seed=seed)).as_numpy("logits")
                if difference(found, alone[(shape, seed)]) > 1e-5:
                    bad.append(shape)
            except Exception as error:
                bad.append(str(error))
            answered.append(1)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not bad, "clients:", bad[:3])
    stats = client.get_inference_statistics("many")["model_stats"][0]
    check(stats["inference_stats"]["success"]["count"] == len(cases) + len(answered), "statistics", stats["inference_stats"]["success"])
    check(stats["execution_count"] <= stats["inference_count"], "statistics", stats["execution_count"])
    check(stats["inference_stats"]["compute_infer"]["ns"] > 0, "statistics of time")
    client.unload_model("many")


def test_joined(server):
    """Requests that wait for each other are run as one; a bad one among them fails alone, with its reason."""
    delay = "max_batch_size: 8\ndynamic_batching { max_queue_delay_microseconds: 300000 }\n"
    server.load("joined", "gpt_8block", delay, stages=2)
    client = server.client(concurrency=8)
    alone = [infer(client, "joined", ids(1, 8, seed)).as_numpy("logits") for seed in range(8)]
    before = client.get_inference_statistics("joined")["model_stats"][0]["execution_count"]
    for bad in (None, 5):
        waiting = []
        for seed in range(8):
            one = http.InferInput("input_ids", [1, 8], "INT64")
            one.set_data_from_numpy(ids(1, 8, seed)["input_ids"] + (9999 if seed == bad else 0))
            waiting.append(client.async_infer("joined", [one]))
        for seed, request in enumerate(waiting):
            try:
                away = difference(request.get_result().as_numpy("logits"), alone[seed])
                check(seed != bad and away <= 1e-5, "joined", seed, "differs by", away)
            except InferenceServerException as error:
                check(seed == bad and "index" in str(error) and "onnx-pipe" in str(error), "joined", seed, error)
    after = client.get_inference_statistics("joined")["model_stats"][0]
    check(any(b["batch_size"] > 1 for b in after["batch_stats"]), "nothing was joined", after["batch_stats"])
    check(after["execution_count"] > before, "executions")
    check(after["inference_stats"]["fail"]["count"] == 1, "failures", after["inference_stats"]["fail"])
    client.unload_model("joined")


def test_refusals(server):
    os.makedirs(os.path.join(WORK, "broken"), exist_ok=True)
    with open(os.path.join(WORK, "broken", "model.onnx"), "wb") as file:
        file.write(b"\x08\x07garbage that is no model" * 40)
    server.refuses("onnx-pipe: broken", "broken", "broken")
    server.refuses("exceeds its cap", "capped", "gpt_8block", memory="10KiB")
    server.refuses("stages=x is no number", "numbered", "gpt_8block", stages="x")
    server.refuses("nosuch", "scheduled", "gpt_8block", schedule="nosuch")
    server.refuses("/no/plan.json", "planned", "gpt_8block", plan="/no/plan.json")
    named = 'input { name: "tokens" data_type: TYPE_INT64 dims: [-1] }\nmax_batch_size: 2\n'
    server.refuses("'tokens' is not in the model", "named", "gpt_8block", named)
    typed = named.replace("tokens", "input_ids").replace("INT64", "INT32")
    server.refuses("TYPE_INT64 in the model, TYPE_INT32 in the configuration", "typed", "gpt_8block", typed)
    ranked = named.replace("tokens", "input_ids").replace("[-1]", "[-1, -1]")
    server.refuses("2 dimensions in the model, 3 in the configuration", "ranked", "gpt_8block", ranked)
    client = server.client()
    check(client.is_server_live() and client.is_model_ready("gpt"), "the server after broken models")
    refused("an index", "index 9999 is outside", lambda: infer(client, "gpt", {"input_ids": ids(1, 4)["input_ids"] * 0 + 9999}))
    infer(client, "gpt", ids(1, 4))


def test_options(server):
    trace = os.path.join(WORK, "trace.json")
    plan = os.path.join(WORK, "plan.json")
    model = os.path.join(WORK, "gpt_8block", "model.onnx")
    command = [os.path.join(BUILD, "bin", "onnx-pipe"), "plan", model, "--stages", "3", "--microbatches", "2", "--bind", "batch=2", "-o", plan]
    made = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    client = server.client()
    wanted = infer(client, "gpt", ids(2, 8)).as_numpy("logits")
    options = [{"stages": 3, "microbatches": 2, "trace": trace, "bind": "batch=2"}, {"stages": 2, "replicas": 2, "weights": "none of ours"}]
    check(made.returncode == 0, "plan:", made.stdout.decode()[-500:])
    options += [{"plan": plan}]
    for own in options:
        server.load("optional", "gpt_8block", **own)
        check(difference(infer(client, "optional", ids(2, 8)).as_numpy("logits"), wanted) <= 1e-5, own)
        client.unload_model("optional", unload_dependents=False)
        while client.is_model_ready("optional"):
            time.sleep(0.02)
    for _ in range(100):
        if os.path.exists(trace) and os.path.getsize(trace) > 500:
            break
        time.sleep(0.05)
    check(os.path.exists(trace) and os.path.getsize(trace) > 500, "no trace")
    with open(server.log, encoding="utf-8", errors="replace") as log:
        check("parameter weights is none of ours" in log.read(), "a parameter that nobody knows is not named")


def test_reload(server):
    """100 times: no growth."""
    client = server.client()
    before = 0
    for i in range(100):
        server.load("again", "gpt_8block", stages=2)
        infer(client, "again", ids(1, 8))
        client.unload_model("again")
        while client.is_model_ready("again"):
            time.sleep(0.005)
        if i == 30:
            before = server.resident()
    grown = server.resident() - before
    print("load and unload: grown by %d KiB in 69 rounds" % (grown >> 10))
    check(grown < 16 << 20, "load and unload: grown by", grown, "bytes")


KILLED = """
import sys
import numpy, tritonclient.http as http
client = http.InferenceServerClient("127.0.0.1:" + sys.argv[1], concurrency=16)
one = http.InferInput("input_ids", [4, 60], "INT64")
one.set_data_from_numpy(numpy.ones((4, 60), numpy.int64))
while True:
    waiting = [client.async_infer("gpt", [one]) for _ in range(16)]
    print("sent", flush=True)
    for request in waiting:
        request.get_result()
"""


def test_killed_client(server):
    client = server.client()
    wanted = infer(client, "gpt", ids(1, 8)).as_numpy("logits")
    for _ in range(4):
        other = subprocess.Popen([sys.executable, "-c", KILLED, str(server.port)], stdout=subprocess.PIPE)
        for _ in range(3):
            other.stdout.readline()
        other.kill()
        other.wait()
        other.stdout.close()
        check(difference(infer(client, "gpt", ids(1, 8)).as_numpy("logits"), wanted) <= 1e-5, "after a killed client")
    client.unload_model("gpt")  # what was in flight is let go of
    for _ in range(400):
        if not client.is_model_ready("gpt"):
            break
        time.sleep(0.05)
    check(not client.is_model_ready("gpt"), "the model does not unload")


def test_budget():
    """All instances of all models have one budget; what does not fit is refused, and the rest goes on."""
    server = Server("budget", budget="1MiB", default_max_batch_size=0)
    client = server.client()
    server.load("first", "gpt_8block")
    check(client.get_model_config("first")["max_batch_size"] == 0, "default-max-batch-size=0")
    server.refuses("onnx-pipe", "crowd", "gpt_8block", "instance_group { count: 40 kind: KIND_CPU }\n")
    with open(server.log, encoding="utf-8", errors="replace") as log:
        check("budget" in log.read(), "the refusal does not speak of the budget")
    check(infer(client, "first", ids(1, 8)).as_numpy("logits").shape == (1, 8, 344), "first")
    server.stop()
    server = Server("unable", library="/no/such.so")
    server.refuses("/no/such.so", "gpt", "gpt_8block")
    check(server.client().is_server_live(), "a server without the library")
    server.stop()


def main():
    server = Server("main")
    tests = (test_results, test_completed, test_clients, test_joined, test_refusals, test_options, test_reload, test_killed_client)
    for test in tests:
        if sys.argv[4:] and test.__name__ not in sys.argv[4:]:
            continue
        started = time.time()
        try:
            test(server)
        except Exception as error:
            check(False, test.__name__, type(error).__name__, str(error)[:800])
        print(test.__name__, "done, %.1f s" % (time.time() - started), flush=True)
    check(server.process.poll() is None, "the server has ended")
    server.stop()
    test_budget()
    print("%d failures" % len(failures))
    return min(len(failures), 100)


if __name__ == "__main__":
    sys.exit(main())
