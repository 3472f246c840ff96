# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=60
"""Libraries of UCX that transport-ucx does not take are refused: by name, with their version and the range; so is one that lacks a function."""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "cli"))
from command import DATA, need_command  # noqa: E402
from team_jobs import Checks  # noqa: E402
from team_kit import command  # noqa: E402

VERSION = """void ucp_get_version(unsigned *a, unsigned *b, unsigned *c);
void ucp_get_version(unsigned *a, unsigned *b, unsigned *c) { *a = %u; *b = %u; *c = 3; }
"""
RUN = ["run", os.path.join(DATA, "gpt_8block", "model.onnx"), "--ranks", "2", "--transport"]
check = Checks()


def with_library(folder, text):
    """Runs over UCX where libucp is made of this text."""
    source, made = os.path.join(folder, "ucp.c"), os.path.join(folder, "libucp.so.0")
    with open(source, "w", encoding="utf-8") as file:
        file.write(text)
    compiler = os.environ.get("OPIPE_CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libucp.so.0", source, "-o", made], check=True)
    return command(*RUN, "ucx:together=1", env=dict(os.environ, LD_LIBRARY_PATH=folder))


def test_versions():
    for version in ((1, 9), (2, 0), (0, 99)):
        with tempfile.TemporaryDirectory() as folder:
            done = with_library(folder, VERSION % version)
        check(done.returncode == 3 and f"libucp.so.0 is UCX {version[0]}.{version[1]}.3" in done.stderr and "1.10 or later" in done.stderr, f"{version}: {done}")


def test_functions_that_are_not_there():
    with tempfile.TemporaryDirectory() as folder:
        done = with_library(folder, VERSION % (1, 10))
    check(done.returncode == 3 and "libucp.so.0 has no function " in done.stderr, f"{done}")


def test_options():
    for words, said in (("tls", "tls= names nothing"), ("together=x", "together=x is not a number"), ("nets=lo", "has no option 'nets'"),
                        ("net=203.0.113.7,together=1", "no interface of this machine has the address 203.0.113.7")):
        done = command(*RUN, "ucx:" + words)
        check(done.returncode in (1, 2, 3) and said in done.stderr, f"{words}: {done}")


need_command()
check.run(globals())
