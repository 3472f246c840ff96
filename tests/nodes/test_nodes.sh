#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The standard's node tests that must pass, with the fast and with the reference kernels; then, for
# information, those of older opsets and of other types.
# ctest: timeout=600
set -eu
here=$OPIPE_SOURCE_DIR/tests/nodes
run=$OPIPE_BUILD_DIR/tests/nodes/run_nodes
data=$("$OPIPE_PYTHON" "$here/fetch.py" "$OPIPE_SOURCE_DIR/build/nodes" \
  --archive "$OPIPE_SHARED_DIR/models/backend_tests/onnx-v1.22.0-backend-test-data.tar.xz") || {
  echo "SKIP: the data of the node tests cannot be had"
  exit 77
}
skipped=$(mktemp)
trap 'rm -f "$skipped"' EXIT
cat "$here/names_random.txt" >"$skipped"
case $data in
  *-1.22.0)
    echo "onnx 1.23.2 cannot be had: tests that the data of 1.22.0 lacks are left out"
    cat "$here"/names_*.txt | while read -r name; do
      [ -d "$data/$name" ] || echo "$name"
    done >>"$skipped"
    ;;
esac
echo "== must pass"
"$run" -x "$skipped" "$data" "$here/names_min.txt" "$here/names_further.txt"
echo "== must pass, reference kernels"
"$run" -o kernels=reference -x "$skipped" "$data" \
  "$here/names_min.txt" "$here/names_further.txt"
echo "== reported"
"$run" -x "$skipped" "$data" "$here/names_torch.txt" "$here/names_types.txt" || true
