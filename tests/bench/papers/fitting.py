# SPDX-License-Identifier: Apache-2.0
"""A machine's constants against its calibration rows: least squares of the logarithms."""

import copy
import math

import figures

STEP = 0.02  # of a constant, for derivatives
RIDGE = 1e-4  # keeps what the rows do not tell apart where it was
ROUNDS = 6


def at(cluster, path):
    """The object and the key that a constant's path ends in."""
    for key in path[:-1]:
        cluster = cluster[key]
    return cluster, path[-1]


def moved(data, cluster, factors):
    """The cluster with its constants times exp(factor)."""
    changed = copy.deepcopy(cluster)
    for constant, factor in zip(data["constants"], factors):
        for path in constant["paths"]:
            where, key = at(changed, path)
            where[key] *= math.exp(factor)
    return changed


def rows_of(data):
    """Calibration rows."""
    return [row for row in data["rows"] if row.get("calibrates")]


def errors(data, engine, cluster, rows):
    """log(ours / published) of rows; only their runs are asked."""
    names = {name for row in rows for name in runs_of(row["ours"])}
    part = dict(data, runs={n: data["runs"][n] for n in data["runs"] if n in names})
    answers = engine.answers(part, cluster)
    return [math.log(figures.number(row["ours"], answers) / row["published"]) for row in rows]


def runs_of(value):
    """Names of the runs in a row's "ours"."""
    if isinstance(value, dict):
        own = [value["run"]] if "run" in value else []
        own += value.get("best", value.get("least", [])) if "figure" in value else []
        return own + [n for v in value.values() for n in runs_of(v)]
    return [n for v in value for n in runs_of(v)] if isinstance(value, list) else []


def solve(matrix, right):
    """A small linear system, by elimination."""
    n = len(right)
    m = [row[:] + [b] for row, b in zip(matrix, right)]
    for k in range(n):
        pivot = max(range(k, n), key=lambda r: abs(m[r][k]))
        m[k], m[pivot] = m[pivot], m[k]
        for r in range(n):
            if r != k:
                f = m[r][k] / m[k][k]
                m[r] = [a - f * b for a, b in zip(m[r], m[k])]
    return [m[k][n] / m[k][k] for k in range(n)]


def newton(jacobian, residual, skip=None):
    """The step that makes least squares smallest, without row `skip`."""
    n = len(jacobian[0])
    rows = [i for i in range(len(residual)) if i != skip]
    square = [[sum(jacobian[i][a] * jacobian[i][b] for i in rows) for b in range(n)] for a in range(n)]
    for a in range(n):
        square[a][a] += RIDGE * len(rows)
    return solve(square, [-sum(jacobian[i][a] * residual[i] for i in rows) for a in range(n)])


def jacobian_of(data, engine, cluster, rows, base):
    """d log(ours) / d log(constant)."""
    n = len(data["constants"])
    columns = []
    for a in range(n):
        factors = [STEP if b == a else 0.0 for b in range(n)]
        there = errors(data, engine, moved(data, cluster, factors), rows)
        columns.append([(t - b) / STEP for t, b in zip(there, base)])
    return [list(row) for row in zip(*columns)]


def usable(data, engine, cluster):
    """Calibration rows whose data are on this machine."""
    good = []
    for row in rows_of(data):
        try:
            errors(data, engine, cluster, [row])
            good.append(row)
        except figures.Missing:
            pass
    return good


def leave_one_out(data, engine):
    """[(row, error)] each calibration row where the constants are those of all others: one step of
    Gauss and Newton from the constants in the file, then played."""
    if not data.get("constants"):
        return []
    cluster = engine.cluster(data["machine"])
    rows = usable(data, engine, cluster)
    if not rows:
        return []
    base = errors(data, engine, cluster, rows)
    jacobian = jacobian_of(data, engine, cluster, rows, base)
    found = []
    for i, row in enumerate(rows):
        there = moved(data, cluster, newton(jacobian, base, i))
        found.append((row["id"], math.exp(errors(data, engine, there, [row])[0]) - 1))
    return found


def fit(data, engine):
    """[(constant, old, new)]"""
    cluster = engine.cluster(data["machine"])
    rows = usable(data, engine, cluster)
    now, best = cluster, errors(data, engine, cluster, rows)
    for _ in range(ROUNDS):
        step = newton(jacobian_of(data, engine, now, rows, best), best)
        for _ in range(6):
            there = moved(data, now, [max(-0.7, min(0.7, s)) for s in step])
            found = errors(data, engine, there, rows)
            if sum(e * e for e in found) < sum(e * e for e in best):
                now, best = there, found
                break
            step = [s / 2 for s in step]
    answer = []
    for constant in data["constants"]:
        old, key = at(cluster, constant["paths"][0])
        new, _ = at(now, constant["paths"][0])
        answer.append((constant["name"], old[key], new[key]))
    return answer


def uses(data, engine):
    """[(constant, rows whose figure it moves)]"""
    if not data.get("constants"):
        return []
    cluster = engine.cluster(data["machine"])
    base = all_figures(data, engine, cluster)
    found = []
    for a, constant in enumerate(data["constants"]):
        factors = [STEP if b == a else 0.0 for b in range(len(data["constants"]))]
        there = all_figures(data, engine, moved(data, cluster, factors))
        found.append((constant["name"], sum(x != y for x, y in zip(base, there))))
    return found


def all_figures(data, engine, cluster):
    """The value of every row."""
    answers = engine.answers(data, cluster)
    return [figures.result(row, answers).ours for row in data["rows"]]
