# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=120
"""Kills of processes that save: the same as test_team_kills_full.py, a few, each time others."""
import random
import sys

from team_kills import main

sys.exit(main(5, random.randrange(1 << 31)))
