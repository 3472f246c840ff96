#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The bench "papers" on all its machines: every row, every constant used, constants those of the
calibration rows.
ctest: timeout=900 label=full,nosan"""

import copy
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import figures
import fitting
import papers
from test_papers import check, test_rows

ROWS_LEAST = 3


def test_constants(engine):
    for data in papers.load(["piz-daint", "p3.16xlarge", "selene"]):
        for name, n in fitting.uses(data, engine):
            check(n >= ROWS_LEAST, "constant '%s' moves %d rows" % (name, n))
    (data,) = papers.load(["piz-daint"])
    unused = copy.deepcopy(data)
    unused["constants"] = [{"name": "unused", "paths": [["devices", 0, "flops"]]}]
    check(fitting.uses(unused, engine) == [("unused", 0)], "a constant that no row needs moves rows")


def squares(errors):
    return sum(e * e for e in errors)


def fits(data, engine, cluster):
    """Does another step of the fit leave its rows about as far off as they are?"""
    rows = fitting.usable(data, engine, cluster)
    base = fitting.errors(data, engine, cluster, rows)
    step = fitting.newton(fitting.jacobian_of(data, engine, cluster, rows, base), base)
    there = fitting.errors(data, engine, fitting.moved(data, cluster, step), rows)
    return squares(there) >= 0.9 * squares(base)


def test_fit(engine):
    """The constants are those of their calibration rows, and others are not."""
    for data in papers.load(["piz-daint", "p3.16xlarge"]):
        cluster = engine.cluster(data["machine"])
        check(fits(data, engine, cluster), "%s: its constants are not those of its rows" % data["machine"])
    other = fitting.moved(data, cluster, [0.3] + [0.0] * (len(data["constants"]) - 1))
    check(not fits(data, engine, other), "a rate of products 1.35 times as high fits as well")


def main():
    engine = figures.Engine()
    test_rows(engine, papers.MACHINES)
    test_constants(engine)
    test_fit(engine)
    print("passed")


if __name__ == "__main__":
    main()
