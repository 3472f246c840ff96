#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1800 label=full,nosan serial
"""The same as test_resident.py for files of 0.5 to 3 GiB."""
import sys

from command import need_command
from resident import main

if __name__ == "__main__":
    need_command()
    sys.exit(main([512, 1536, 3072], 4096))
