#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Functions that must not be called: unsafe ones anywhere; in the library and the plugins also whatever ends the process, prints,
or takes memory behind the host's allocator."""
import re

from lib import tree

UNSAFE = {
    "sprintf": "snprintf", "vsprintf": "vsnprintf", "strcpy": "memcpy with a size", "stpcpy": "memcpy with a size",
    "strcat": "snprintf", "strncpy": "memcpy with a size", "strncat": "snprintf", "strtok": "strcspn", "gets": "fgets",
    "atoi": "strtol", "atol": "strtol", "atof": "strtod", "alloca": "an arena", "mktemp": "mkstemp",
    "tmpnam": "mkstemp",
}
# Only where a host's process is at stake.
IN_HOST = {
    "abort": "return a status", "exit": "return a status", "_exit": "return a status",
    "quick_exit": "return a status", "assert": "return OPIPE_E_INTERNAL", "atexit": "close()",
    "printf": "the log", "puts": "the log", "perror": "the log", "putchar": "the log", "vprintf": "the log",
    "getenv": "secure_getenv", "setenv": "an option", "putenv": "an option", "setlocale": "nothing: the host's",
    "rand": "a seeded generator", "srand": "a seeded generator", "signal": "nothing: the host's",
    "sigaction": "nothing: the host's", "chdir": "openat", "fork": "a thread",
    "system": "a thread", "popen": "a thread", "pthread_create": "opipe_thread_create: the host's signals are not ours",
}
MEMORY = {name: "the allocator" for name in (
    "malloc", "calloc", "realloc", "free", "strdup", "strndup", "posix_memalign", "aligned_alloc", "asprintf",
    "vasprintf")}
HOST_FOLDERS = ("loader/", "partition/", "runtime/", "abi/registry/", "abi/api/", "abi/include/", "plugins/")
MEMORY_HOME = ("loader/base/", "abi/include/opipe/host_helpers.h")  # the latter is compiled into hosts


def rules_for(path):
    rules = dict(UNSAFE)
    if path.startswith(HOST_FOLDERS):
        rules.update(IN_HOST)
        if not path.startswith(MEMORY_HOME):
            rules.update(MEMORY)
    return rules


def main():
    report = tree.Report("banned")
    for path in tree.files(tree.C_ENDINGS):
        rules = rules_for(path)
        # A call, not a member of a table and not the end of a longer name.
        pattern = re.compile(r"(?<![\w.>*])(" + "|".join(rules) + r")\s*\(")
        for number, line in enumerate(tree.code(tree.text(path)).splitlines(), 1):
            for match in pattern.finditer(line):
                name = match.group(1)
                report.add(path, number, f"{name} is not used here; take {rules[name]}", name)
            if re.match(r"\s*#\s*include\s*<threads\.h>", line):
                report.add(path, number, "threads.h fails under ThreadSanitizer; take pthread.h")
    report.end()


if __name__ == "__main__":
    main()
