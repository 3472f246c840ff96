#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 label=twice
"""generate: greedy tokens are the likeliest ones of the whole model, in every form of past keys and over stages; many
requests have the tokens that they have alone; folders of ONNX Runtime GenAI; bad input is refused by name and value."""
import array
import json
import os
import shutil
import struct
import sys
import tempfile

from command import DATA, DONE, REFUSED, USAGE, Count, genai_double, need_command, run

ROWS = os.path.join(DATA, "rows")
FORMS = ("grown", "combined", "group_query", "multi_head", "attention", "tensor_scatter", "scatter_nd", "alibi", "window")
WHOLE = os.path.join(ROWS, "whole", "model.onnx")
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
CONFIG = {
    "model": {
        "type": "llama", "context_length": 64, "vocab_size": 24, "eos_token_id": 23, "pad_token_id": 0,
        "decoder": {
            "filename": "model.onnx", "head_size": 8, "hidden_size": 16, "num_attention_heads": 2,
            "num_hidden_layers": 2, "num_key_value_heads": 2,
            "inputs": {"input_ids": "input_ids", "past_key_names": "past_key_values.%d.key",
                       "past_value_names": "past_key_values.%d.value"},
            "outputs": {"logits": "logits", "present_key_names": "present.%d.key",
                        "present_value_names": "present.%d.value"},
        },
    },
    "search": {"do_sample": False, "max_length": 48},
}


class Checks(Count):
    def that(self, true, name, problem):
        """Counts; true if it holds."""
        self.check(name, None if true else problem or "it does not hold")
        return true


def model(form):
    return os.path.join(ROWS, form, "model.onnx")


def ids_text(ids):
    return ",".join(map(str, ids))


def write_npy(path, ids):
    header = "{'descr': '<i8', 'fortran_order': False, 'shape': (1, %d), }" % len(ids)
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    with open(path, "wb") as file:
        file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode())
        file.write(array.array("q", ids).tobytes())


def read_floats(path):
    with open(path, "rb") as file:
        data = file.read()
    return array.array("f", data[10 + struct.unpack("<H", data[8:10])[0]:])


def answers(result):
    return [r["answers"] for r in json.loads(result.out)["requests"]]


def check_greedy(count, folder):
    """Each form's tokens: the likeliest ones behind the ids before them, by the model without rows."""
    first = None
    for form in FORMS:
        for stages in ("1", "2"):
            what = "%s in %s stages" % (form, stages)
            r = run("generate", model(form), "--ids", ids_text(PROMPT), "--max-tokens", "24", "--context", "64",
                    "--stages", stages, "--json")
            if not count.that(r.status == DONE, what, r.err):
                continue
            ids = answers(r)[0][0]["ids"]
            count.that(len(ids) == 24, what, r.out)
            if form not in ("alibi", "window"):
                first = first or ids
                count.that(ids == first, what, "%s, other forms %s" % (ids, first))
    path = os.path.join(folder, "ids.npy")
    write_npy(path, PROMPT + first)
    r = run("run", WHOLE, "--input", "input_ids=" + path, "--stages", "1", "-o", folder)
    if not count.that(r.status == DONE, "the whole model", r.err):
        return
    logits = read_floats(os.path.join(folder, "logits.npy"))
    words = len(logits) // (len(PROMPT) + len(first))
    for k, token in enumerate(first):
        at = (len(PROMPT) + k - 1) * words
        row = logits[at:at + words]
        count.that(row[token] == max(row), "token %d" % k, "%d, the likeliest is %d" % (token, row.index(max(row))))


def trace(path, n):
    with open(path, "w", encoding="utf-8") as file:
        for k in range(n):
            line = {"ids": [(7 * k + 3 * i) % 23 for i in range(1 + 5 * k % 17)], "at": 0.002 * k, "seed": k}
            if k % 3:
                line.update(temperature=0.8, top_k=5)
            if k % 4 == 3:
                line["n"] = 2
            file.write(json.dumps(line) + "\n\n")


def check_many(count, folder):
    """Requests at once have the tokens that they have alone, and in another plan."""
    path = os.path.join(folder, "trace.jsonl")
    trace(path, 12)
    found = []
    for options in (["--stages", "2", "--rows", "8", "--tokens", "512"], ["--stages", "1", "--drafts", "ngram"]):
        r = run("generate", model("group_query"), "--requests", path, "--max-tokens", "16", "--context", "64",
                "--reference", "--json", *options)
        if count.that(r.status == DONE, "requests, " + " ".join(options), r.err):
            document = json.loads(r.out)
            count.that(document["reference"]["other"] == 0, "reference", r.out)
            count.that(document["tokens"] == sum(len(a["ids"]) for x in answers(r) for a in x), "tokens", r.out)
            found.append([[a["ids"] for a in x] for x in answers(r)])
    count.that(len(found) == 2 and found[0] == found[1], "two plans", str(found))
    count.that(found and [len(x) for x in found[0]] == [2 if k % 4 == 3 else 1 for k in range(12)], "answers", "")


def check_folder(count, folder):
    """A folder of ONNX Runtime GenAI as it is; its defaults; what options change."""
    place = os.path.join(folder, "genai")
    os.mkdir(place)
    shutil.copy(model("group_query"), os.path.join(place, "model.onnx"))
    with open(os.path.join(place, "genai_config.json"), "w", encoding="utf-8") as file:
        json.dump(CONFIG, file)
    r = run("generate", place, "--ids", ids_text(PROMPT), "--max-tokens", "100", "--json")
    if count.that(r.status == DONE, "a folder", r.err):
        one = answers(r)[0][0]
        count.that(json.loads(r.out)["generation"]["context"] == 48, "a folder's context", r.out)
        count.that(one["end"] in ("context", "stop") and 23 not in one["ids"], "a folder's stop", r.out)
    r = run("generate", place, "--prompt", "a text")
    count.that(r.status == REFUSED and "tokenizer" in r.err, "a text without a tokenizer", r.err)
    os.environ["ONNX_PIPE_GENAI"] = os.environ["ORT_LIB_PATH"] = genai_double(folder)
    texts = [run("generate", place, *how, "--max-tokens", "9", "--json") for how in (("--prompt", "\3\1\4"), ("--ids", "3,1,4"))]
    found = [answers(text)[0][0]["ids"] if text.status == DONE else text.err for text in texts]
    count.that(found[0] == found[1] and len(found[0]) == 9, "a text by a tokenizer", str(found))
    del os.environ["ONNX_PIPE_GENAI"], os.environ["ORT_LIB_PATH"]
    layers = dict(CONFIG["model"]["decoder"], num_hidden_layers=3)
    with open(os.path.join(place, "genai_config.json"), "w", encoding="utf-8") as file:
        json.dump({"model": dict(CONFIG["model"], decoder=layers), "search": CONFIG["search"]}, file)
    for command in ("generate", "plan"):
        r = run(command, place, *(["--ids", "1"] if command == "generate" else []))
        count.that(r.status == REFUSED and "names 3 layers, 2 are there: no input is named 'past_key_values.2.key'" in r.err,
                   "a layer that is missing, " + command, r.err)
    os.remove(os.path.join(place, "genai_config.json"))
    r = run("generate", place, "--ids", "1")
    count.that(r.status == USAGE and "has no genai_config.json" in r.err, "a folder without a config", r.err)


REFUSED_LINES = (
    ("{\"ids\": []}", "a prompt without ids"),
    ("{\"ids\": [24]}", "id 24 at place 0, the vocabulary has 24"),
    ("{\"ids\": [1], \"top_p\": 1.5}", "top_p is 1.5"),
    ("{\"ids\": [1], \"temperature\": -1}", "temperature is -1"),
    ("{\"ids\": [1], \"n\": 0}", "n is 0"),
    ("{\"ids\": [1], \"min_tokens\": 9, \"max_tokens\": 8}", "min_tokens"),
    ("{\"ids\": [1], \"beams\": 2}", "beams"),
    ("{\"ids\": [%s]}" % ", ".join("1" for _ in range(64)),
     "makes 65 tokens with the first of its answer, the context has 64"),
    ("{\"ids\": 7}", "\"ids\" must be a list of ids"),
    ("{\"ids\": [1], \"prompt\": \"x\"}", "and not both"),
    ("[1]", "a JSON object is needed"),
    ("{\"ids\": [1], \"at\": -1}", "\"at\" must be seconds"),
    ("{\"ids\": [1]", "near end of file"),
)
STATES = "with states"
REFUSED_MODELS = (
    ("recurrent", "node 'Add_32' (Add): no row form: it joins rows with a state"),
    ("convolved", "node 'Concat_33' (Concat): no row form: it joins rows with a state"),
    ("rows_mixed", "node 'ReduceMean_32' (ReduceMean) does not carry the axis: dimension 1"),
    ("crossed", "(Attention): no row form: its keys or values are the same for all rows: cross-attention"),
    ("both_ways", "(Attention): no row form: it is not causal: row 0 reads token 1"),
    ("relative_table", "(Attention): no row form: its mask adds"),
    ("branch_on_length", "is another for 4 tokens than for 64: the context crosses a branch on the length"),
)


def check_plan(count):
    """plan shows what generate would run: pages, the rank that limits them, passes, slices; a default is said."""
    options = ["--stages", "2", "--sequences", "4", "--rows", "16", "--page", "64"]
    r = run("plan", model("group_query"), *options, "--context", "70", "--tokens", "256", "--memory", "2MiB")
    count.that(r.status == DONE and "context:" not in r.err, "plan", r.err)
    for text in ("generation: 256 tokens in 4 pages of 64, context 70, 4 sequences active; passes of up to 16 rows",
                 "room for tokens: ", "; rank ", " limits", "passes in flight: ", " tokens/s for 4 sequences, stages idle ",
                 "a prompt of 70 tokens alone: ", " slices, of at most 16 rows"):
        count.that(text in r.out, "plan: " + text, r.out)
    r = run("plan", model("alibi"), *options, "--json")
    said = "context: 1024 tokens, as neither --context nor a folder says"
    if count.that(r.status == DONE and said in r.err, "plan's default", r.err):
        document = json.loads(r.out)
        count.that(document["generation"]["context"] == 1024, "plan's context", r.out)
        count.that(0 < document["passes"]["slice_rows"] <= 16 and document["passes"]["slices"] >= 64, "slices", r.out)
    r = run("plan", model("group_query"), *options, "--context", "70", "--gap-ms", "0.5", "--memory", "2MiB", "--json")
    if count.that(r.status == DONE, "plan by caps", r.err):
        document = json.loads(r.out)
        pages = document["generation"]["pages"] * document["generation"]["page"]
        count.that(document["generation"]["gap_ms"] == 0.5 and [rank["tokens"] >= pages >= 70 for rank in document["memory"]] == [True, True],
                   "a gap in ms, tokens by rank", r.out)
    r = run("plan", model("group_query"), *options, "--gap", "2", "--gap-ms", "1", "--context", "70")
    count.that(r.status == REFUSED and "a gap of 2 passes and of 1 ms" in r.err, "two gaps", r.err)
    r = run("generate", model("alibi"), "--ids", "1", "--max-tokens", "1", "--stages", "1")
    count.that(r.status == DONE and said in r.err, "generate's default", r.err)
    for option in ("--auto", "--measure", "--train"):
        r = run("plan", model("group_query"), *options, option)
        count.that(r.status == USAGE and option + " is not allowed" in r.err, "plan " + option, r.err)


def check_refused(count, folder):
    path = os.path.join(folder, "one.jsonl")
    for line, message in REFUSED_LINES:
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n" + line + "\n")
        r = run("generate", model("group_query"), "--requests", path, "--context", "64", "--stages", "1")
        count.that(r.status == REFUSED and message in r.err and ":2: " in r.err, line[:60], r.err)
    for form, message in REFUSED_MODELS:
        r = run("generate", model(form), "--ids", "1,2", "--stages", "1", "--context", "64")
        count.that(r.status == REFUSED and message in r.err and STATES in r.err, form, r.err)
    r = run("generate", os.path.join(DATA, "encoder", "model.onnx"), "--ids", "1,2", "--stages", "1")
    count.that(r.status == REFUSED and "it is not causal: row 0 reads token 1" in r.err and STATES in r.err, "an encoder, beyond its positions", r.err)
    for options, message in ((["--ids", "1,x"], "ids such as 1,2,3"), (["--stop", "1+", "--ids", "1"], "--stop 1+"),
                             (["--sampling", "n", "--ids", "1"], "KEY=VALUE"), (["--prompt", "x"], "tokenizer of a folder"),
                             (["--ids", "1", "--requests", path], "--ids is not allowed beside it")):
        r = run("generate", model("group_query"), "--context", "64", *options)
        count.that(r.status == USAGE and message in r.err, " ".join(options), r.err)


def check_processes(count):
    """Two processes: process 0 answers; options that mean nothing here."""
    words = ["generate", model("group_query"), "--ids", ids_text(PROMPT), "--max-tokens", "8", "--context", "64"]
    one = run(*words, "--stages", "2", "--json")
    two = run("launch", "-n", "2", "--", *words, "--stages", "2", "--json", "--reference")
    if count.that(one.status == DONE and two.status == DONE, "two processes", one.err + two.err):
        out = two.out.replace("[rank 0] ", "")
        count.that([r["answers"] for r in json.loads(out)["requests"]] == answers(one), "two processes' tokens", out)
        count.that(json.loads(out)["reference"]["other"] == 0, "two processes' reference", out)
    bad = run("launch", "-n", "2", "--", "generate", model("group_query"), "--ids", "99", "--context", "64", "--stages", "2")
    count.that(bad.status == REFUSED and "id 99" in bad.err, "two processes, an id", bad.err)
    for options, message in ((["--bind", "batch=2"], "--bind: a plan for generation"), (["--pin", "x=1"], "--pin: a plan for"),
                             (["--no-fuse"], "--no-fuse: a plan for")):
        r = run(*words, *options)
        count.that(r.status == USAGE and message in r.err, " ".join(options), r.err)


def main():
    need_command()
    count = Checks()
    with tempfile.TemporaryDirectory() as folder:
        check_greedy(count, folder)
        check_many(count, folder)
        check_folder(count, folder)
        check_plan(count)
        check_refused(count, folder)
    check_processes(count)
    return count.finish()


sys.exit(main())
