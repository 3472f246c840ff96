#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The nvcc that ./dev deps cuda fetched is found by whatever ./dev builds and tests, before any other: on a copy of ./dev
# with programs in place of CMake and the compiler.
set -u
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
fetched=$folder/build/venv/cuda/lib/python3.11/site-packages/nvidia/cu13/bin
mkdir -p "$fetched" "$folder/bin"
cp "$OPIPE_SOURCE_DIR/dev" "$folder/dev"
printf '#!/bin/sh\n' >"$fetched/nvcc"
printf '#!/bin/sh\n' >"$folder/bin/nvcc"
printf '#!/bin/sh\nprintf installed\n' >"$folder/bin/dpkg-query"
printf '#!/bin/sh\necho "$1: $(command -v nvcc)"\n' >"$folder/bin/cmake"
chmod +x "$fetched/nvcc" "$folder/bin/"*
PATH=$folder/bin:$PATH sh "$folder/dev" build >"$folder/said" 2>&1
for file in "$folder/build/configure-release.log" "$folder/said"; do
  if ! grep -qF "$fetched/nvcc" "$file"; then
    echo "./dev build does not see the nvcc in $fetched:"
    cat "$file"
    exit 1
  fi
done
