#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=600 label=full
"""A field before the last one of every public struct in turn: plugins and hosts built so are
refused, by the name of the struct."""
import sys

import layouts


def main():
    return layouts.report(layouts.try_all(None), "%d structs tried" % len(layouts.cases(None)))


if __name__ == "__main__":
    sys.exit(main())
