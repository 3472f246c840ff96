#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A process killed at a hundred instants while it saves: the old or the new checkpoint is there.
# ctest: timeout=120 label=full
set -eu
OPIPE_KILL_INSTANTS=100 exec "$OPIPE_BUILD_DIR/tests/runtime/checkpoint/test_checkpoint" \
  test_kill_while_saving_loses_nothing
