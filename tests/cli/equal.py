# SPDX-License-Identifier: Apache-2.0
"""Processes against threads: the same plan run by ranks in several processes and by ranks in one gives the same bits: outputs of run;
losses, norms and weights of train."""
import concurrent.futures
import filecmp
import json
import os
import re
import tempfile

from command import DATA, SHARED, run
from team_jobs import TRAIN, Launched

MODERN = os.path.join(SHARED, "models", "modern")
FAMILIES = ("gpt2", "llama", "bert", "gemma2", "olmo2", "phi3", "qwen2", "vit")
OWN = ("demo", "gpt_8block", "llama_8block", "encoder", "vision", "gpt_past", "llama_fp16", "gpt_bf16")
# (processes, ranks)
SPLITS = ((4, 4), (2, 4))
SCHEDULES = ("gpipe", "1f1b", "interleaved:chunks=2", "looped-bfs:chunks=2", "chimera", "2bw", "terapipe:slices=2", "seq1f1b:slices=2", "zb-h1", "zb-h2",
             "zb-auto", "zb-interleaved:chunks=2", "zbv", "v-half", "v-min", "dualpipev")


def labels_of(folder):
    """The words that train a model of ../shared/models/modern."""
    with open(os.path.join(folder, "meta.json"), encoding="utf-8") as file:
        meta = json.load(file)
    logits = meta["outputs"][0]["name"]
    one = os.path.join(folder, "test_data_set_0")
    data = [word for i, given in enumerate(meta["inputs"]) for word in ("--data", f"{given['name']}={one}/input_{i}.pb")]
    return [*data, "--data", f"labels={folder}/labels.pb", "--loss", f"cross-entropy:logits={logits},labels=labels"]


def train_words(name):
    if name == "demo":
        return TRAIN
    folder = os.path.join(MODERN, name, "train")
    return ["train", os.path.join(folder, "model.onnx"), *labels_of(folder), "--microbatches", "2"]


def is_there(name):
    return name in OWN or os.path.isdir(os.path.join(MODERN, name, "train"))


def alike(transport):
    """Threads plan for the same transport: its figures may decide where a model is cut."""
    return ["--transport", transport.split(":")[0]] if transport else []


def launched(processes, words, transport=None):
    words = [transport if word == transport.split(":")[0] else word for word in words] if transport else words
    status, text, _ = Launched("launch", processes, *words).end(120)
    return status, re.sub(r"(?m)^\[rank \d+\] ", "", text)


def figures(text):
    said = json.loads(text[text.index("{"):text.rindex("}") + 1])
    return [(s["step"], s["loss"], s["gradient_norm"]) for s in said["steps"]]


def compare_training(name, processes, ranks, schedule, folder, transport):
    """None, "" if the schedule does not run this model, or what differs. Weights: after one step more, from each one's checkpoint."""
    words = [*train_words(name), "--ranks", str(ranks), "--schedule", schedule, "--json", "--optimizer", "sgd:lr=0.1,momentum=0.9"]
    words += alike(transport)
    saved = [os.path.join(folder, name) for name in ("threads", "processes")]
    threads = run(*words, "--steps", "2", "--save", saved[0])
    if threads.status in (2, 3):
        refused, _ = launched(processes, [*words, "--steps", "2"], transport)
        return "" if refused == threads.status else f"threads: {threads.status}, processes: {refused}: {threads.err}"
    status, text = launched(processes, [*words, "--steps", "2", "--save", saved[1]], transport)
    if threads.status != 0 or status != 0:
        return f"{threads.status} {status} {threads.err}{text}"
    if figures(text) != figures(threads.out):
        return f"losses or norms differ: {figures(text)}, threads {figures(threads.out)}"
    for folder in saved:
        again = run(*words, "--steps", "1", "--resume", folder, "--save-model", folder + ".onnx")
        if again.status != 0:
            return f"{folder}: {again.err}"
    return None if filecmp.cmp(saved[0] + ".onnx", saved[1] + ".onnx", shallow=False) else "weights differ"


def compare_outputs(name, processes, ranks, schedule, folder, transport):
    model = os.path.join(DATA, name) if name in OWN else os.path.join(MODERN, name, "infer")
    words = ["run", model, "--ranks", str(ranks), "--schedule", schedule, *alike(transport)]
    made = [os.path.join(folder, name) for name in ("threads", "processes")]
    threads = run(*words, "-o", made[0])
    status, text = launched(processes, [*words, "-o", made[1]], transport)
    if threads.status in (2, 3):
        return "" if status == threads.status else f"threads: {threads.status}, processes: {status}: {threads.err}{text}"
    if threads.status != 0 or status != 0:
        return f"{threads.status} {status} {threads.err}{text}"
    files = [sorted(os.path.relpath(os.path.join(at, f), m) for at, _, fs in os.walk(m) for f in fs) for m in made]
    if not files[0] or files[0] != files[1]:
        return f"files differ: {files}"
    return f"outputs differ: {files[0]}" if any(filecmp.cmpfiles(*made, files[0], shallow=False)[1:]) else None


def try_cases(check, cases, at_once=3, transport=None):
    """Cases (what, model, (processes, ranks), schedule); transport: of the processes. Returns how many ran."""

    def one(case):
        what, name, (processes, ranks), schedule = case
        if not is_there(name):
            print(f"SKIP: ../shared/models/modern/{name} is not there")
            return None
        with tempfile.TemporaryDirectory() as folder:
            compare = compare_training if what == "train" else compare_outputs
            wrong = compare(name, processes, ranks, schedule, folder, transport)
        return case, wrong

    ran = 0
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        for done in [pool.submit(one, case) for case in cases]:
            if done.result() is None:
                continue
            (what, name, split, schedule), wrong = done.result()
            ran += wrong is None
            print(f"{what} {name}, {split[0]} processes, {split[1]} ranks, {schedule}: {'refused alike' if wrong == '' else wrong or 'equal'}", flush=True)
            check(not wrong, f"{what} {name} {split} {schedule}: {wrong}")
    return ran
