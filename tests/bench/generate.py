#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generation beside GenAI's generator, and beside itself: an 88M LLaMA as GenAI's builder writes it, random weights.

Each turn is a process of its own, which tells its own seconds from the first request to the last token, without loading. Turns
alternate; a round gives one ratio, and the median of the rounds is judged. Ends are never met by chance: every answer has as many
tokens as are asked for. GenAI gets its requests in static batches of 8 (or fewer), each as long as its longest answer, of which only
the tokens that were asked for count; our process gets all requests at once.

Run by build/venv/real's Python with build/venv/genai's packages on PYTHONPATH (generate.sh sees to it).

usage: generate.py --models DIR --command FILE [--rounds N] [--only WORD,...] [--record DIR]
       generate.py --peer JOB.json
exit status: 1 when an engine fails or an aim is missed
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from inference import keep, machine, quiet, show, spread, until_stopped, verdicts_text  # noqa: E402

CONTEXT, WORDS, BATCH = 4096, 16000, 8
FORMS = {"fp32": {}, "int4": {"accuracy_level": "4"}}
NUMBERS = {
    "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 12,
    "intermediate_size": 2048, "vocab_size": WORDS, "max_position_embeddings": CONTEXT, "tie_word_embeddings": True, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip


def folder_of(models, form):
    """GenAI's folder of a form, made where it is not there yet."""
    folder = os.path.join(models, f"llama_88m_4k-{form}")
    if not os.path.exists(os.path.join(folder, "model.onnx")):
        sys.path.insert(0, os.path.join(HERE, "..", "real"))
        import decoders

        with tempfile.TemporaryDirectory() as source:
            decoders.checkpoint(source, "llama", NUMBERS, 1)
            decoders.build(source, folder, form, FORMS[form])
    return folder


# ---- requests ----


def prompt_of(rng, n):
    return [int(i) for i in rng.integers(3, WORDS, n)]


def request(ids, tokens, at=0.0, **more):
    return {"ids": ids, "at": at, "max_tokens": tokens, "min_tokens": tokens, **more}


def alike(n, prompt, tokens):
    rng = np.random.default_rng(n + prompt)
    return [request(prompt_of(rng, prompt), tokens) for _ in range(n)]


def trace():
    """64 requests, log-uniform: prompts of 16 to 1,024 ids, answers of 16 to 256 tokens. The same in every run."""
    rng = np.random.default_rng(64)
    sizes = [[int(round(low * (high / low) ** rng.random())) for low, high in ((16, 1024), (16, 256))] for _ in range(64)]
    return [request(prompt_of(rng, prompt), tokens) for prompt, tokens in sizes]


def entering(with_prompt):
    """8 sequences that generate, and a prompt of 2,048 ids that enters between them."""
    found = alike(8, 16, 96)
    if with_prompt:
        found.append(request(prompt_of(np.random.default_rng(5), 2048), 1, at=1.0))
    return found


def shared(apart_s):
    """Two sequences with 1,024 ids in common, the second after the first has ended."""
    ids = prompt_of(np.random.default_rng(6), 1024)
    return [request(ids + [5], 2), request(ids + [6], 2, at=apart_s)]


# ---- turns ----


def ours(args, form, requests, options, scratch):
    path = os.path.join(scratch, "requests.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in requests)
    command = [args.command, "generate", folder_of(args.models, form), "--requests", path, "--context", str(CONTEXT), "--json", *options]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise RuntimeError(said.stderr.strip()[-300:])
    return json.loads(said.stdout)


def genai(args, form, requests, threads, scratch):
    path = os.path.join(scratch, "job.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"folder": folder_of(args.models, form), "requests": requests, "threads": threads}, file)
    said = subprocess.run([sys.executable, "-B", os.path.abspath(__file__), "--peer", path], capture_output=True, text=True, check=False)
    if said.returncode != 0:
        raise RuntimeError(said.stderr.strip()[-300:])
    return json.loads(said.stdout.splitlines()[-1])


def peer(path):
    """GenAI's side of a turn, in a process of its own."""
    import onnxruntime_genai as og

    with open(path, encoding="utf-8") as file:
        job = json.load(file)
    config = og.Config(job["folder"])
    config.overlay('{"model":{"decoder":{"session_options":{"intra_op_num_threads":%d,"inter_op_num_threads":1}}}}' % job["threads"])
    model = og.Model(config)
    requests, began = job["requests"], time.perf_counter()
    for first in range(0, len(requests), BATCH):
        batch = requests[first : first + BATCH]
        longest = max(len(r["ids"]) for r in batch)
        tokens = max(r["max_tokens"] for r in batch)
        params = og.GeneratorParams(model)
        params.set_search_options(batch_size=len(batch), max_length=longest + tokens, min_length=longest + tokens, do_sample=False)
        generator = og.Generator(model, params)
        padded = [[0] * (longest - len(r["ids"])) + r["ids"] for r in batch]
        generator.append_tokens(np.array(padded, np.int32))
        for _ in range(tokens):
            generator.generate_next_token()
    seconds = time.perf_counter() - began
    print(json.dumps({"tokens_per_s": sum(r["max_tokens"] for r in requests) / seconds, "seconds": seconds}))


# ---- rows ----

ONE = ["--device", "cpu,threads=1"]
TWO = ["--stages", "2", *ONE]  # a rank has the device named last


def speed(found):
    return found["tokens_per_s"]


def first_of(number):
    return lambda found: 1 / found["requests"][number]["first_ms"]


def gap(found):
    return 1 / found["between_ms"]["p99"]


def rows_of():
    """(name, form, measure, our turn (requests, options), the other turn: the same, or GenAI's threads, aim of the ratio)"""
    found = []
    for form in FORMS:
        found.append((f"one sequence, one core, {form}, over GenAI", form, speed, (alike(1, 64, 96), ONE), 1, 1.0))
        found.append((f"8 sequences, one core, {form}, over GenAI", form, speed, (alike(8, 64, 64), ONE), 1, 1.0))
        aim = 1.0 if form == "fp32" else 1.15
        found.append((f"16 sequences, 2 stages x 1 thread, {form}, over GenAI with 2 threads", form, speed, (alike(16, 64, 64), TWO), 2, aim))
    wide = ["--sequences", "16", *TWO]
    found.append(("a trace of 64 requests, 2 stages x 1 thread, over GenAI's static batches of 8", "fp32", speed, (trace(), wide), 2, 1.5))
    eased = ["--gap", "2", *ONE]
    found.append(("99 % of the times between tokens of 8 sequences while a prompt of 2,048 enters, over those without it", "fp32", gap,
                  (entering(True), eased), (entering(False), eased), 1 / 2))  # fmt: skip
    long = alike(1, 2048, 2)
    found.append(("a prompt of 2,048, 2 stages over 1", "fp32", first_of(0), (long, TWO), (long, ONE), 1.7))
    found.append(("the first token behind 1,024 shared ids, over the first sequence's", "fp32", None, (shared(20.0), ONE), None, 20.0))
    repeats = [request([7, 8, 9] * 16, 128)]
    found.append(("repetitive text, drafts over none", "fp32", speed, (repeats, ["--drafts", "ngram", *ONE]), (repeats, ONE), 1.5))
    plain = [request(prompt_of(np.random.default_rng(8), 48), 128, temperature=1.0, seed=4)]
    found.append(("text without repeats, drafts over none", "fp32", speed, (plain, ["--drafts", "ngram", *ONE]), (plain, ONE), 0.97))
    return found


def ratio_of(args, row, number, scratch):
    """One round: our figure over the other's."""
    _, form, figure, own, other, _ = row
    if other is None:
        found = ours(args, form, *own, scratch)
        return found["requests"][0]["first_ms"] / found["requests"][1]["first_ms"]

    def turn(side):
        quiet()
        return speed(genai(args, form, own[0], side, scratch)) if isinstance(side, int) else figure(ours(args, form, *side, scratch))

    sides = [own, other]
    values = [turn(side) for side in (sides if number % 2 == 0 else reversed(sides))]
    mine, theirs = values if number % 2 == 0 else reversed(values)
    return mine / theirs


def measure_row(args, row, scratch):
    found = {"name": row[0], "aim": row[-1], "ratios": []}
    try:
        for number in range(args.rounds):
            found["ratios"].append(ratio_of(args, row, number, scratch))
    except (RuntimeError, KeyError, ZeroDivisionError) as reason:
        found["error"] = str(reason)
    return found


def report(record):
    about = record["machine"]
    lines = [f"# Generation, {record['date']}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; LLaMA of 88M",
             "", "| row | min / median / max | rounds |", "|---|---|---|"]  # fmt: skip
    for row in record["rows"]:
        said = row.get("error") or show(spread(row["ratios"]))
        lines.append(f"| {row['name']} | {said} | {len(row['ratios'])} |")
    return "\n".join([*lines, "", *verdicts_text(verdicts(record["rows"]))]) + "\n"


def verdicts(rows):
    return [(row["name"], statistics.median(row["ratios"]), row["aim"], statistics.median(row["ratios"]) >= row["aim"])
            for row in rows if row["ratios"] and "error" not in row]  # fmt: skip


def measure(args, record):
    words = args.only.split(",") if args.only else []
    with tempfile.TemporaryDirectory() as scratch:
        for row in rows_of():
            if words and not any(word in row[0] for word in words):
                continue
            record["rows"].append(measure_row(args, row, scratch))
            keep(args, record, report(record), "generate")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", help="where the models are, or are made")
    parser.add_argument("--command", help="onnx-pipe")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="words in names of rows: 'one core', fp32, trace, drafts ...")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-generate.md and .json")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        peer(args.peer)
        return 0
    record = {"date": datetime.date.today().isoformat(), "machine": machine(), "rows": []}
    until_stopped(measure, args, record)
    print(report(record))
    failed = any("error" in row for row in record["rows"])
    return 1 if failed or not all(held for *_, held in verdicts(record["rows"])) else 0


if __name__ == "__main__":
    sys.exit(main())
