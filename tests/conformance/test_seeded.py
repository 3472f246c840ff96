#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=300
"""The conformance programs find the defects that plugins of the tests have: with each of them the program says what is wrong
and ends with 1 (with 2 where there is nothing that could be checked), neither by a signal nor never."""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

BUILD = os.environ["OPIPE_BUILD_DIR"]
PROGRAMS = os.path.join(BUILD, "libexec", "onnx-pipe")
PLUGINS = os.path.join(BUILD, "tests", "plugins")
MOCKS = os.path.join(BUILD, "tests", "abi", "mocks")
CPU = os.path.join(BUILD, "lib", "onnx-pipe", "opipe-backend-cpu.so")
FAILED, NO_PLUGIN = 1, 2

TRANSPORTS = {
    "": (0, ", 0 failed"),
    "no-world": (FAILED, "world_open answered OK without an object"),
    "any-world": (FAILED, "an unknown option is accepted"),
    "no-endpoint": (FAILED, "endpoint_open answered OK without an object"),
    "no-stream": (FAILED, "stream_open answered OK without an object"),
    "odd-stream": (FAILED, "stream_open answered 77, which is neither done nor failed"),
    "no-group": (FAILED, "group_open answered OK without an object"),
    "falling-group": (FAILED, "sums are those of rising order"),
    "keep-stream": (FAILED, "bytes are left after close"),
    "grant": (FAILED, "reserve succeeds before the receive was posted"),
    "early": (FAILED, "a message is there before it was sent"),
    "say-nothing": (FAILED, "an error without a message"),
    "spoil": (FAILED, "messages are whole"),
    "ring-nobody": (FAILED, "ring does not move the doorbell"),
    "wait-never": (FAILED, "wait without a ring"),
    "notify-nobody": (FAILED, "notify does not call"),
    "abort-unsaid": (FAILED, "the message is not that of the first abort"),
    "no-abort": (NO_PLUGIN, "slot 20 of its interface 'opipe.transport/1' is NULL"),
    "short-table": (NO_PLUGIN, "has 16 bytes, it needs"),
    "no-table": (NO_PLUGIN, "its interface is missing"),
    "open-pending": (NO_PLUGIN, "its open() answered 1, which is neither done nor failed"),
}
BACKENDS = {"": (0, ", 0 failed")}
BACKENDS.update({f"no-{slot}": (FAILED, f"{slot} answered OK without an object")
                 for slot in ("device_open", "queue_open", "event_create", "buffer_alloc", "compile", "params_create", "bind")})
BACKENDS.update({
    "uncapped": (FAILED, "buffer_alloc beyond the cap"),
    "any-option": (FAILED, "option"),
    "uncounted": (FAILED, "usage 0 + 0"),
    "keeps-buffers": (FAILED, "bytes after buffer_free"),
    "supports-all": (FAILED, "operator"),
    "silent": (FAILED, "an error without a message"),
    "needs-less": (FAILED, "arena"),
    "reads-shifted": (FAILED, "write, copy, read give other bytes"),
    "copies-nothing": (FAILED, "write, copy, read give other bytes"),
    "reads-zeros": (FAILED, "params_read gives other values"),
    "allocates": (FAILED, "alloc"),
})
SCHEDULES = {
    "good": (FAILED, "no forward case was accepted"),
    "magic": (NO_PLUGIN, "its descriptor is none"),
    "size": (NO_PLUGIN, "its descriptor is too short"),
    "kind": (NO_PLUGIN, "another kind of plugin"),
    "null-open": (NO_PLUGIN, "its descriptor lacks a function"),
    "null-slot": (NO_PLUGIN, "slot 2 of its interface 'opipe.schedule/1' is NULL"),
    "no-table": (NO_PLUGIN, "its interface is missing"),
    "short-table": (NO_PLUGIN, "has 16 bytes, it needs"),
    "open-fails": (NO_PLUGIN, "the mock's device is on fire"),
    "open-silent": (NO_PLUGIN, "its open() failed without a message"),
    "open-pending": (NO_PLUGIN, "its open() answered 1"),
    "null-id": (FAILED, "a text is missing"),
    "id": (FAILED, "its id is not 1 to 63 letters"),
}


def run(kind, args, defect):
    env = dict(os.environ, OPIPE_IMPAIRED=defect)
    try:
        result = subprocess.run([os.path.join(PROGRAMS, f"conformance-{kind}"), *args], env=env, capture_output=True, text=True,
                                timeout=120, check=False)
    except subprocess.TimeoutExpired:
        return None, "it hangs"
    return result.returncode, result.stdout + result.stderr


def main():
    failed = done = 0
    cases = [("transport", [os.path.join(PLUGINS, "opipe-transport-impaired.so")], *case) for case in TRANSPORTS.items()]
    cases += [("backend", [os.path.join(PLUGINS, "opipe-backend-impaired.so"), CPU], *case) for case in BACKENDS.items()]
    cases += [("schedule", [os.path.join(MOCKS, name, f"opipe-schedule-{name}.so")], name, want)
              for name, want in SCHEDULES.items()]
    with ThreadPoolExecutor(4) as pool:  # a lost ring is waited for
        results = list(pool.map(lambda case: run(*case[:3]), cases))
    for (kind, _, defect, (status, text)), (code, said) in zip(cases, results):
        done += 1
        if code != status or text not in said or (status == 0 and re.search(r", 0 failed", said) is None):
            failed += 1
            print(f"FAILED {kind} '{defect}': status {code}, not {status}; '{text}' is looked for in: {said[-600:]}")
    print(f"{done - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
