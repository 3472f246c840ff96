#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes processed.json: rows of logits and the probabilities from which the next token is drawn.

    build/venv/real/bin/python tests/runtime/generate/processed.py

Where transformers has the rules, its logits processors are applied in double precision; for presence and frequency
penalties, which it lacks, and for mixtures with them, a plain program is. Every row of transformers is also computed
by the plain program, and must agree."""
import json
import math
import os
import random

import torch
import transformers
from transformers.generation import logits_process as lp

VOCAB = 32
EOS = 7


def plain(how, logits, prompt, answer):
    """The rules in their order, over lists."""
    s = list(logits)
    for i, add in how.get("logit_bias", {}).items():
        s[int(i)] += add
    if len(answer) < how.get("min_tokens", 0):
        s[how["stop"]] = -math.inf
    for i in set(prompt + answer):
        penalty = how.get("repetition_penalty", 1)
        s[i] = s[i] * penalty if s[i] < 0 else s[i] / penalty
    for i in set(answer):
        s[i] -= how.get("frequency_penalty", 0) * answer.count(i) + how.get("presence_penalty", 0)
    s = [x / how.get("temperature", 1) for x in s]
    order = sorted(range(VOCAB), key=lambda i: (-s[i], i))
    if how.get("top_k", 0):
        order = order[:how["top_k"]]
    high = s[order[0]]
    w = {i: math.exp(s[i] - high) for i in order}
    total, before, kept = math.fsum(w.values()), 0.0, []
    for i in order:
        if before < how.get("top_p", 1) * total:
            kept.append(i)
        before += w[i]
    kept = [i for i in kept if w[i] >= how.get("min_p", 0)]
    total = math.fsum(w[i] for i in kept)
    return [w[i] / total if i in kept else 0.0 for i in range(VOCAB)]


def by_transformers(how, logits, prompt, answer):
    processors = []
    if "logit_bias" in how:
        processors.append(lp.SequenceBiasLogitsProcessor([[[int(i)], float(x)] for i, x in how["logit_bias"].items()]))
    if "repetition_penalty" in how:
        processors.append(lp.RepetitionPenaltyLogitsProcessor(how["repetition_penalty"]))
    if "min_tokens" in how:
        processors.append(lp.MinNewTokensLengthLogitsProcessor(len(prompt), how["min_tokens"], EOS))
    if "temperature" in how:
        processors.append(lp.TemperatureLogitsWarper(how["temperature"]))
    if "top_k" in how:
        processors.append(lp.TopKLogitsWarper(how["top_k"]))
    if "top_p" in how:
        processors.append(lp.TopPLogitsWarper(how["top_p"]))
    if "min_p" in how:
        processors.append(lp.MinPLogitsWarper(how["min_p"]))
    ids, scores = torch.tensor([prompt + answer]), torch.tensor([logits], dtype=torch.float64)
    for processor in processors:
        scores = processor(ids, scores)
    return torch.softmax(scores, -1)[0].tolist()


def cases(rng):
    """The sampling of each row: a rule alone, pairs, all."""
    alone = [{}, {"temperature": 0.3}, {"temperature": 2.5}, {"top_k": 1}, {"top_k": 5}, {"top_k": 100}, {"top_p": 0.1}, {"top_p": 0.5},
             {"top_p": 0.95}, {"min_p": 0.02}, {"min_p": 0.4}, {"min_p": 1.0}, {"repetition_penalty": 1.7}, {"repetition_penalty": 0.6},
             {"min_tokens": 20, "stop": EOS}, {"min_tokens": 2, "stop": EOS}, {"logit_bias": {"3": 4.5, "9": -6}}]
    yield from alone
    for _ in range(12):
        how = {}
        for one in rng.sample(alone[1:], 4):
            how.update(one)
        yield how
    yield {"presence_penalty": 1.5}
    yield {"frequency_penalty": 0.8}
    yield {"presence_penalty": -0.5, "frequency_penalty": -0.25, "temperature": 0.7}
    yield {"presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.2, "temperature": 0.7, "top_k": 12, "top_p": 0.9,
           "min_p": 0.03, "logit_bias": {"1": 2.25}, "min_tokens": 9, "stop": EOS}


def main():
    rng, rows = random.Random(60), []
    for how in cases(rng):
        logits = torch.tensor([rng.gauss(0, 2.5) for _ in range(VOCAB)], dtype=torch.float32).tolist()
        prompt = [rng.randrange(VOCAB) for _ in range(6)]
        answer = [rng.randrange(VOCAB) for _ in range(3)] + [5, 5]
        probabilities = plain(how, logits, prompt, answer)
        source = "plain"
        if not {"presence_penalty", "frequency_penalty"} & set(how):
            source, ours = "transformers", probabilities
            probabilities = by_transformers(how, logits, prompt, answer)
            assert max(abs(a - b) for a, b in zip(ours, probabilities)) < 1e-9, how
        rows.append({"by": source, "sampling": how, "prompt": prompt, "answer": answer, "logits": logits, "probabilities": probabilities})
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "processed.json")
    with open(path, "w", encoding="ascii") as out:
        out.write('{"transformers": "%s", "rows": [\n' % transformers.__version__)
        out.write(",\n".join(json.dumps(row) for row in rows))
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
