# SPDX-License-Identifier: Apache-2.0
"""The seeded defects, and what the conformance programs must say of each."""
from collections import namedtuple

# crash: the plugin ends with a signal
Case = namedtuple("Case", "inner defect text options crash")


def case(inner, defect, text="", options=(), crash=False):
    return Case(inner, defect, text, options, crash)


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

TRANSPORT = {
    "": "",
    "info-beyond": "info writes beyond what is known",
    "info-rule": "rule 17",
    "groups-null": "the slots of groups are NULL",
    "table-half-a-group": "slot 19 (group_test) of its table is NULL, others that go with it are there",
    "table-slot-null": "slot 2 (world_close) of its table is NULL",
    "world-without-object": "world_open answers OK without an object",
    "world-silent": "an error without a message",
    "world-other-status": "err->status is -7",
    "world-set-on-failure": "world_open fails, but sets its output",
    "world-leaks": "a world that was closed leaves",
    "options-ignored": "an unknown option is accepted",
    "endpoint-without-object": "endpoint_open answers OK without an object",
    "endpoint-leaks": "a world that was closed leaves",
    "stream-without-object": "stream_open, sender answers OK without an object",
    "stream-leaks": "streams, memory and groups that were closed leave",
    "stream-size-unchecked": "differ in size is accepted",
    "stream-depth-unchecked": "differ in depth is accepted",
    "streams-mixed-up": "that are alike got another one's message",
    "memory-without-object": "memory_register answers OK without an object",
    "memory-leaks": "streams, memory and groups that were closed leave",
    "reserve-always": "reserve succeeds before the receive was posted",
    "torn-at-the-start": "messages are whole",
    "zero-refused": "there is nothing to send",
    "large-cut": "a message of 36 bytes for a receive of 32 is accepted",
    "received-ignored": "the receiver's `done` is not recorded",
    "sent-ignored": "the sender's `done` is not recorded",
    "ready-ignored": "although its `ready` is not complete",
    "other-sequence": "messages are whole",
    "other-bytes": "messages are whole",
    "recv-allocates": "allocations while messages went",
    "depth-more": "receive 3 of a stream of depth 2 stands",
    "depth-less": "recv within the stream's depth",
    "test-early": "a message is there before it was sent",
    "test-unsteady": "test is not OK again",
    "ring-of-nothing": "ring does not move the doorbell",
    "notify-never": "calls",
    "notify-twice": "notify calls although nothing has rung",
    "abort-without-reason": "the message is not that of the first abort",
    "abort-second": "the message is not that of the first abort: a later reason",
    "abort-not-in-reserve": "reserve after abort: status 1",
    "group-without-object": "group_open answers OK without an object",
    "group-leaks": "streams, memory and groups that were closed leave",
    "sums-falling": "the sums are those of rising order",
    "sums-by-rank": "reductions of members in another order than the ranks",
    "sums-by-arrival": "the sums are those of rising order",
    "sums-wide": "the sums are those of rising order",
    "sums-of-one-rank": "rank 1: in 0 of 12 rounds",
    "sums-of-fewer": "the sums are those of rising order",
    "sums-of-more": "the sums are those of rising order",
    "sums-of-float64": "reductions of float64",
    "sums-of-strings": "a reduction of strings is accepted",
    "sums-too-many": "more values than the group was opened for is accepted",
    "sums-early": "the sums are those of rising order",
    "sums-ready-ignored": "although a member's `ready` is not complete",
    "sums-done-ignored": "`done` is not recorded",
}

CASES = (
    cases("transport-emulated", TRANSPORT)
    + cases("transport-local", TRANSPORT)
    + cases("schedule-gpipe", COMMON)
    + cases("schedule-gpipe", SCHEDULE)
    + [
        case("transport-emulated", "torn", "messages are whole"),
        case("transport-emulated", "send-blocks", "a call does not return"),
        case("transport-emulated", "wait-loses-rings", "wait for what has rung already"),
        case("transport-local", "wait-loses-rings", "wait for what has rung already"),
        case("transport-emulated", "wait-without-timeout", "doorbell: a call does not return"),
        case("transport-local", "abort-of-nothing", "abort does not wake a waiting rank"),
        case("schedule-interleaved", ""),
        case("schedule-interleaved", "options-ignored", "option 'chunks' changes nothing"),
        case("schedule-gpipe", "close-of-null-crashes", "life: the plugin crashed, with signal 6", crash=True),
        case("schedule-gpipe", "memory-twice", "were given back twice", crash=True),
        case("schedule-gpipe", "reads-behind", "the plugin crashed, with signal 11", crash=True),
        case("schedule-gpipe", "reads-behind-request", "the plugin crashed, with signal 11", crash=True),
        case("schedule-gpipe", "writes-behind", "the plugin crashed, with signal 11", crash=True),
    ]
)
