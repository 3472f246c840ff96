# SPDX-License-Identifier: Apache-2.0
"""Formulas of the papers, and how they count their published numbers."""


# ---- Chimera, table 2: bubble over the whole, forwards and backwards equally long ----


def bubble_chimera(d, n):
    return (d - 2) / (2 * n + d - 2)


def bubble_flush(d, n):
    return (d - 1) / (n + d - 1)


def bubble_gems(d):
    return (d - 1) / (d + 0.5)


# ---- Megatron-LM: how figures count, section 5.1 ----


def teraflops(layers, hidden, vocab, seq, batch, devices, step_ms):
    """Per device, with recomputation counted, and the head's products."""
    work = 96.0 * batch * seq * layers * hidden**2 * (1 + seq / (6 * hidden) + vocab / (16.0 * layers * hidden))
    return work / (devices * step_ms * 1e-3) / 1e12


# ---- baselines that nobody plays: stated figures ----


def days(teraflops_each, devices, params, tokens):
    """Training time, 8 T P / (n X)."""
    return 8.0 * tokens * params / (devices * teraflops_each * 1e12) / 86400
