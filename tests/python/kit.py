# SPDX-License-Identifier: Apache-2.0
"""Shared by the tests of the package: its place, models, and how test functions are run."""
import os
import subprocess
import sys
import threading
import time
import traceback

SOURCE, BUILD = os.environ["OPIPE_SOURCE_DIR"], os.environ["OPIPE_BUILD_DIR"]
PACKAGE = os.environ.get("OPIPE_TEST_PACKAGE") or os.path.join(BUILD, "python")
DATA = os.path.join(SOURCE, "tests", "data")
DEMO = os.path.join(DATA, "demo", "model.onnx")


def skip(why):
    print(f"SKIP: {why}")
    raise SystemExit(77)


def begin(*packages):
    """The package can be imported; else the test is skipped."""
    if os.environ.get("OPIPE_SANITIZE"):
        skip("Python does not open a library built with a sanitizer")
    for name in ("numpy", "cffi", *packages):
        try:
            __import__(name)
        except ImportError:
            skip(f"no python3 with {name}")
    sys.path.insert(0, PACKAGE)
    sys.dont_write_bytecode = True


def raises(kind, words, function, *arguments, **named):
    """The exception of `function`, which must be of `kind` and say all of `words`."""
    try:
        function(*arguments, **named)
    except kind as error:
        for word in (words,) if isinstance(words, str) else words:
            if word not in str(error):
                raise AssertionError(f"{type(error).__name__} does not say {word!r}: {error}") from error
        return error
    raise AssertionError(f"nothing was raised, {kind.__name__} should have been")


def child(text, *arguments, timeout=50, cwd=None):
    """A Python process of its own that has the package."""
    environment = dict(os.environ, PYTHONPATH=PACKAGE, PYTHONDONTWRITEBYTECODE="1")
    command = [sys.executable, "-X", "faulthandler", "-c", text, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout, env=environment, cwd=cwd)


def threads(n, function):
    """Runs function(i) on n threads; raises what any of them has raised."""
    failures = []

    def one(i):
        try:
            function(i)
        except BaseException as error:  # handed over
            failures.append(error)

    running = [threading.Thread(target=one, args=(i,)) for i in range(n)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if failures:
        raise failures[0]


def main(tests):
    """Runs every function of the mapping whose name begins with test_, or those that the command line names."""
    chosen = sys.argv[1:] or [name for name in tests if name.startswith("test_")]
    failed = 0
    for name in chosen:
        started = time.monotonic()
        try:
            tests[name]()
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"FAILED: {name}")
        else:
            print(f"{name} {time.monotonic() - started:.2f} s")
    return 1 if failed else 0
