# SPDX-License-Identifier: Apache-2.0
"""The seeded defects, and what the conformance programs must say of each."""
from collections import namedtuple

# slow: it is found when a wait ends in vain; crash: the plugin ends with a signal
Case = namedtuple("Case", "inner defect text options slow crash")


def case(inner, defect, text="", options=(), slow=False, crash=False):
    return Case(inner, defect, text, options, slow, crash)


def cases(inner, table, options=()):
    return [case(inner, defect, text, options) for defect, text in table.items()]


COMMON = {
    "": "",
    "magic": "its magic is",
    "descriptor-short": "its struct_size is 16",
    "major": "its ABI major is 2",
    "minor": "it needs minor 99",
    "kind": "its kind is 7",
    "flags": "its flags are 0x1",
    "rows-null": "layout fingerprints",
    "row-differs": "has another layout than that of the headers",
    "id-null": "its id is NULL",
    "id-long": "is not 1 to 63 letters",
    "id-odd": "its id 'a b' is not",
    "version-null": "its version is NULL",
    "license-null": "its license is NULL",
    "summary-long": "its summary is longer than 255 bytes",
    "summary-lines": "its summary is empty, or not one line",
    "open-null": "it has no open function",
    "close-null": "it has no close function",
    "get_interface-null": "it has no get_interface function",
    "open-without-instance": "open answers OK without an instance",
    "open-pending": "open answers 1",
    "open-silent": "open: an error without a message",
    "open-leaks": "close left 288 bytes",
    "memory-size": "with another size than they have",
    "memory-behind": "something was written",
    "interface-null": "get_interface answers NULL",
    "interface-of-any-id": "an unknown interface is not NULL",
    "interface-of-a-prefix": "an unknown interface is not NULL",
    "table-empty": "struct_size of its table is 0",
    "table-short": "struct_size of its table is 24",
    "table-slot-null": "of its table is NULL",
}

SCHEDULE = {
    "impure": "plan is not pure",
    "impure-instance": "plan is not pure: another instance's",
    "rank": "is on the wrong rank",
    "stage": "stage 1 of 1",
    "pass": "the unknown pass 9",
    "version": "version 3 of 1",
    "backward-in-forward": "in a forward order",
    "missing": "passes are never computed",
    "twice": "twice",
    "deadlock": "records can never run",
    "deadlock-by-cost": "records can never run",
    "records-null": "plan: status -8",
    "error-swallowed": "plan does not hand on its sink's error",
    "error-changed": "plan does not hand on its sink's error",
    "plan-leaks": "plan, again, keeps 48 bytes",
    "layout-pending": "is accepted (status 1)",
    "layout-silent": "an error without a message",
    "layout-impure": "layout is not pure",
    "layout-huge": "there is room for 4096 instances",
    "layout-empty": "0 replicas",
    "layout-rank": "stage 0 is on rank",
    "layout-parts": "2 parts of a forward",
    "options-null": "3 options, at NULL",
    "option-key": "option 0 lacks a key or help",
    "option-type": "option 0: type 113",
    "option-preset": "its preset '7' is not in [1, 4]",
    "option-unused": "option 'depth' changes nothing",
}

CASES = (
    cases("schedule-gpipe", COMMON)
    + cases("schedule-gpipe", SCHEDULE)
    + [
        case("schedule-interleaved", ""),
        case("schedule-interleaved", "options-ignored", "option 'chunks' changes nothing"),
        case("schedule-gpipe", "close-of-null-crashes", "life: the plugin crashed, with signal 6", crash=True),
        case("schedule-gpipe", "memory-twice", "were given back twice", crash=True),
        case("schedule-gpipe", "reads-behind", "the plugin crashed, with signal 11", crash=True),
        case("schedule-gpipe", "reads-behind-request", "the plugin crashed, with signal 11", crash=True),
        case("schedule-gpipe", "writes-behind", "the plugin crashed, with signal 11", crash=True),
    ]
)
