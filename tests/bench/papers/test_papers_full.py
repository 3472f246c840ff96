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


def test_fit(engine):
    """The constants are those of their calibration rows: another step of the fit hardly moves them."""
    for data in papers.load(["piz-daint", "p3.16xlarge"]):
        cluster = engine.cluster(data["machine"])
        rows = fitting.usable(data, engine, cluster)
        base = fitting.errors(data, engine, cluster, rows)
        step = fitting.newton(fitting.jacobian_of(data, engine, cluster, rows, base), base)
        check(all(abs(s) < 0.2 for s in step), "%s: constants are not those of its rows: %s" % (data["machine"], step))


def main():
    engine = figures.Engine()
    test_rows(engine, papers.MACHINES)
    test_constants(engine)
    test_fit(engine)
    print("passed")


if __name__ == "__main__":
    main()
