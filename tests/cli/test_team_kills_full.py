# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=1200 label=full
"""A hundred kills of random processes at random instants lose no checkpoint."""
import random
import sys

from team_kills import main

sys.exit(main(100, random.randrange(1 << 31)))
