#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# ctest: timeout=900 label=full
# test_cudnn_plans.sh for every shape and chip.
exec sh "$OPIPE_SOURCE_DIR/tests/plugins/backend-cuda/test_cudnn_plans.sh" all
