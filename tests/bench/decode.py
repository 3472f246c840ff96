#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A step of decoding beside ONNX Runtime's and GenAI's: an 88M LLaMA as GenAI's builder writes it, one token behind 64.

Files: fp32, and int4 (MatMulNBits, blocks of 32, accuracy level 4). Keys and values grow. onnx-pipe and ONNX Runtime get dense
inputs once and run the same step again and again; GenAI generates behind 64 to 96 tokens, since it cannot go back when there are
several sequences, and chooses each token besides. Turns alternate in one run, as in inference.py; aims are judged by
the median of rounds.

Run by build/venv/real's Python with build/venv/genai's packages on PYTHONPATH (decode.sh sees to it).

usage: decode.py --models DIR --library FILE [--rounds N] [--threads 1,2] [--only fp32,int4,1,8] [--record DIR]
exit status: 1 when an engine fails or an aim is missed
"""
import argparse
import datetime
import os
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from inference import Race, difference, keep, machine, show, until_stopped, verdicts_text  # noqa: E402

PAST, MOST = 64, 96
TURN_SECONDS = 0.4
FORMS = {"fp32": {}, "int4": {"accuracy_level": "4"}}
SEQUENCES = (1, 8)
AIM = 1.0
NUMBERS = {
    "hidden_size": 768, "num_attention_heads": 12, "num_key_value_heads": 4, "head_dim": 64, "num_hidden_layers": 12,
    "intermediate_size": 2048, "vocab_size": 16000, "max_position_embeddings": 512, "tie_word_embeddings": True, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip


class Genai:
    """GenAI's generator: a run makes one token of every sequence."""

    def __init__(self, job):
        import onnxruntime_genai as genai

        self.genai, self.job = genai, job
        config = genai.Config(os.path.dirname(job["path"]))
        config.overlay('{"model":{"decoder":{"session_options":{"intra_op_num_threads":%d,"inter_op_num_threads":1}}}}' % job["threads"])
        self.model = genai.Model(config)
        self.begin()

    def begin(self):
        n = self.job["dims"]["batch_size"]
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(batch_size=n, max_length=2 * MOST, min_length=2 * MOST, do_sample=False)
        self.generator, self.length = self.genai.Generator(self.model, params), PAST
        self.generator.append_tokens((np.arange(n * PAST, dtype=np.int32) % 7000 + 3).reshape(n, PAST))
        self.generator.generate_next_token()  # chosen by the prompt's logits: no step yet

    def run(self):
        if self.length == MOST:
            self.begin()
        self.generator.generate_next_token()
        self.length += 1

    def close(self):
        pass


ENGINES = {"genai": Genai}


def write(models, form):
    """The file of a form, made where it is not there yet."""
    folder = os.path.join(models, f"llama_88m-{form}")
    path = os.path.join(folder, "model.onnx")
    if not os.path.exists(path):
        sys.path.insert(0, os.path.join(HERE, "..", "real"))
        import decoders

        with tempfile.TemporaryDirectory() as source:
            decoders.checkpoint(source, "llama", NUMBERS, 1)
            decoders.build(source, folder, "int4" if form == "int4" else form, FORMS[form])
    return path


def feeds(path, sequences, past=PAST, total=PAST + 1):
    """The inputs of a step, and the sizes of the free dimensions. past: rows of the buffers of keys; total: tokens so far"""
    import onnx

    rng = np.random.default_rng(1)
    sizes = {"batch_size": sequences, "sequence_length": 1, "past_sequence_length": past, "total_sequence_length": total,
             "kv_cache_dim": NUMBERS["head_dim"]}  # fmt: skip
    found, dims = {}, {}
    for value in onnx.load(path, load_external_data=False).graph.input:
        names = [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        shape = [name if isinstance(name, int) else sizes[name] for name in names]
        dims.update({name: sizes[name] for name in names if not isinstance(name, int)})
        if value.name.startswith("past"):
            found[value.name] = rng.standard_normal(shape, np.float32) * np.float32(0.3)
        elif "mask" in value.name:
            found[value.name] = np.ones(shape, np.int64)
        else:
            found[value.name] = rng.integers(3, 500, shape)
    return found, dims


def row_of(args, form, sequences, threads, scratch):
    path = write(args.models, form)
    inputs, dims = feeds(path, sequences)
    given = os.path.join(scratch, "inputs.npz")
    np.savez(given, **inputs)
    saved = {name: os.path.join(scratch, f"{name}.npy") for name in ("pipe", "ort")}
    job = {"path": path, "dims": dims, "threads": threads, "stages": 1, "inputs": given, "model": form}
    race = Race({
        "pipe": dict(job, engine="pipe", library=args.library, save=saved["pipe"]),
        "ort": dict(job, engine="ort", save=saved["ort"]),
        "genai": dict(job, engine="genai", module="decode"),
    })  # fmt: skip
    row = {"form": form, "sequences": sequences, "threads": threads, "errors": dict(race.errors), "ratios": {}}
    if race.alive:
        first = race.one(race.alive[0], "runs", 2)[0]
        race.run("runs", max(1, min(500, int(TURN_SECONDS / first))), args.rounds)
    row["ms"] = {label: [1e3 * t for t in race.times(label)] for label in race.alive}
    for peer in ("ort", "genai"):
        if "pipe" in race.alive and peer in race.alive:
            row["ratios"][peer] = race.ratio("pipe", peer)
    if "ort" in row["ratios"]:
        row["difference"] = difference([saved["pipe"], saved["ort"]])
    race.close()
    return row


def text_of(row):
    cells = [show(row["ms"][name]) if name in row["ms"] else row["errors"].get(name, "-") for name in ("pipe", "ort", "genai")]
    for peer in ("ort", "genai"):
        ratio = row["ratios"].get(peer)
        cells.append(f"**{ratio[0][1]:.2f}** ({show(ratio[0])}), {ratio[1]}/{ratio[2]} clean" if ratio else "-")
    off = f"{row['difference']:.0e}" if "difference" in row else "-"
    return f"| {row['form']} | {row['sequences']} | {row['threads']} | {' | '.join(cells)} | {off} |"


def verdicts(rows):
    names = {"ort": "ONNX Runtime's", "genai": "GenAI's"}
    return [(f"a decode step, {row['form']}, {row['sequences']} sequences, t{row['threads']}: speed over {names[peer]}", ratio[0][1], AIM,
             ratio[0][1] >= AIM) for row in rows for peer, ratio in row["ratios"].items()]  # fmt: skip


def report(record):
    about = record["machine"]
    lines = [f"# Decoding, {record['date']}", "", f"{about['cpu']}, {about['cores']} cores, {' '.join(about['isa'])}; LLaMA of 88M, one token "
             f"behind {PAST}", "", "| file | sequences | threads | onnx-pipe ms min / median / max | ONNX Runtime ms | GenAI ms | over ONNX "
             "Runtime | over GenAI | difference |", "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    return "\n".join([*lines, *map(text_of, record["rows"]), "", *verdicts_text(verdicts(record["rows"]))]) + "\n"


def measure(args, record):
    words = args.only.split(",") if args.only else []
    chosen = [word for word in words if word in FORMS] or list(FORMS)
    numbers = [int(word) for word in words if word.isdigit()] or SEQUENCES
    with tempfile.TemporaryDirectory() as scratch:
        for form in chosen:
            for sequences in numbers:
                for threads in map(int, args.threads.split(",")):
                    record["rows"].append(row_of(args, form, sequences, threads, scratch))
                    keep(args, record, report(record), "decode")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--models", required=True, help="where the models are, or are made")
    parser.add_argument("--library", required=True, help="libonnxpipe.so")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", default="1")
    parser.add_argument("--only", default="", help="words: fp32, int4, numbers of sequences")
    parser.add_argument("--record", help="folder for YYYY-MM-DD-decode.md and .json")
    record = {"date": datetime.date.today().isoformat(), "machine": machine(), "rows": []}
    until_stopped(measure, parser.parse_args(), record)
    print(report(record))
    failed = any("pipe" in row["errors"] or "ort" in row["errors"] for row in record["rows"])
    return 1 if failed or not all(held for *_, held in verdicts(record["rows"])) else 0


if __name__ == "__main__":
    sys.exit(main())
