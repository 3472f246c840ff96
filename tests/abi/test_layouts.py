#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120 label=headers
"""Layout fingerprints: the lists are those of the headers; a few changed structs are refused by
name (test_layouts_full.py: all of them); an older target minor hides what a newer one has."""
import sys

import layouts

COVER = {
    "opipe_region",
    "opipe_layout",
    "opipe_transport",
    "opipe_plugin",
    "opipe_struct_row",
    "opipe_plan_params",
    "opipe_view",
}


def main():
    wrong = ["a list is not made of its header"] if layouts.freeze.check(layouts.freeze.wanted()) else []
    wrong += layouts.try_all(COVER)
    wrong += layouts.target_minor()
    return layouts.report(wrong, "%d structs tried" % len(layouts.cases(COVER)))


if __name__ == "__main__":
    sys.exit(main())
