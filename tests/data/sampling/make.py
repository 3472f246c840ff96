#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Probabilities after the rules of sampling, by transformers' logits processors in float64.

    python make.py     beside this file; needs torch and transformers 5.23

probabilities.txt, one case a line: temperature top_k top_p min_p repetition, the number of earlier tokens and they, then the
vocabulary's logits and their probabilities.
"""
import pathlib

import torch
from transformers import LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

HERE = pathlib.Path(__file__).resolve().parent
WORDS = 24
CASES = [(1, 0, 1, 0, 1), (0.7, 0, 1, 0, 1), (1.5, 5, 1, 0, 1), (1, 0, 0.8, 0, 1), (1, 0, 1, 0.2, 1), (1, 0, 1, 0, 1.3), (1, 0, 1, 0, 0.8),
         (0.9, 12, 0.9, 0.05, 1.1), (2.5, 3, 0.5, 0.3, 1.2), (0.3, 20, 0.95, 0.01, 1.05), (1, 1, 1, 0, 1), (1, 0, 0.01, 0, 1)]


def main():
    torch.manual_seed(3)
    lines = []
    for temperature, top_k, top_p, min_p, repetition in CASES:
        logits = torch.round(torch.randn(1, WORDS, dtype=torch.float64) * 2, decimals=3).float().double()
        history = torch.randint(0, WORDS, (1, 9))
        rules = LogitsProcessorList()
        if repetition != 1:
            rules.append(RepetitionPenaltyLogitsProcessor(penalty=float(repetition)))
        rules.append(TemperatureLogitsWarper(float(temperature)))
        if top_k:
            rules.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            rules.append(TopPLogitsWarper(float(top_p)))
        if min_p:
            rules.append(MinPLogitsWarper(float(min_p)))
        found = torch.softmax(rules(history, logits.clone()), -1)
        numbers = [temperature, top_k, top_p, min_p, repetition, history.shape[1], *history[0].tolist()]
        lines.append(" ".join(f"{x:.9g}" for x in numbers + logits[0].tolist()) + " " + " ".join(f"{x:.12g}" for x in found[0].tolist()))
    (HERE / "probabilities.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
