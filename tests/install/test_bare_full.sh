#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# On a bare Debian 12, made below the build folder: the wheel in a new virtual environment, with README's Python lines and a training loop
# (on the demo, and on a module that PyTorch exports here); the packages: upgraded from a version before, the command, its manual, a C host
# by pkg-config, conformance; the tarball; all of it removed without rests. The mirror is that of the machine's own apt.
# After ./dev wheel and ./dev package. ctest: timeout=1800 label=full serial
set -eu
skip() {
  echo "SKIP: a bare Debian 12: $*"
  exit 77
}
[ -z "${OPIPE_SANITIZE:-}" ] || skip "the packages are not of this build"
[ "$(id -u)" -eq 0 ] || skip "only root can make one"
command -v mmdebstrap >/dev/null || skip "no mmdebstrap"
command -v unshare >/dev/null || skip "no unshare"
packages=$OPIPE_SOURCE_DIR/build/package
wheels=$OPIPE_SOURCE_DIR/build/wheel/dist
ls "$packages"/*.deb >/dev/null 2>&1 || skip "no packages in build/package (./dev package)"
ls "$wheels"/onnxpipe-*.whl >/dev/null 2>&1 || skip "no wheel in build/wheel/dist (./dev wheel)"
# Files of apt that name this release, not one of a third party's own name.
sources=$(grep -lE '^(Suites:|deb ).* ?\bbookworm( |$)' /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources \
  2>/dev/null | xargs -r grep -lwE 'main' || true)
[ -n "$sources" ] || skip "the machine's apt has no mirror of bookworm"

folder=$OPIPE_BUILD_DIR/bare
root=$folder/root
rm -rf "$folder"
mkdir -p "$folder"
trap 'rm -rf "$folder"' EXIT
# shellcheck disable=SC2086
mmdebstrap --variant=minbase --include=python3-venv,gcc,libc6-dev,pkg-config,man-db bookworm "$root" $sources >"$folder/log" 2>&1 || {
  tail -n 5 "$folder/log"
  skip "mmdebstrap failed"
}
unshare -m true 2>/dev/null || skip "no mount namespaces"

cp -L /etc/resolv.conf /etc/hosts "$root/etc"
try=$root/try
mkdir -p "$try/wheels" "$try/debs" "$try/debs-before"
cp "$packages"/*.deb "$try/debs"
cp "$packages"/*.tar.gz "$try/tree.tar.gz"
tests=$OPIPE_SOURCE_DIR/tests
cp -R "$tests/data/demo" "$tests/install/consumer/consumer.c" "$tests/examples/host.c" "$tests/examples/python/train.py" "$tests/install/bare/inside.sh" "$try"

# The wheel, what it requires, and README's lines with the environment's Python.
"$OPIPE_PYTHON" -m pip download -q -d "$try/wheels" "$wheels"/onnxpipe-*.whl >"$folder/log" 2>&1 || {
  tail -n 5 "$folder/log"
  skip "numpy and cffi cannot be had"
}
mkdir -p "$try/tests/data"
ln -s ../../demo "$try/tests/data/demo"
sed -n '/^PYTHONPATH=build\/python python3/,/^```/ { /^```/!p }' "$OPIPE_SOURCE_DIR/README.md" |
  sed 's|^PYTHONPATH=build/python python3|/try/env/bin/python|' >"$try/wheels/readme.sh"
grep -q onnxpipe "$try/wheels/readme.sh"

# A version before this one: the same packages under a smaller number, and a file more that the upgrade takes away.
version=$(dpkg-deb -f "$(ls "$packages"/libonnxpipe1_*.deb)" Version)
echo "$version" >"$try/version"
for package in "$packages"/*.deb; do
  rm -rf "$folder/old"
  dpkg-deb -R "$package" "$folder/old"
  sed -i "s/= $version)/= 0.0.0-1)/; s/^Version: .*/Version: 0.0.0-1/" "$folder/old/DEBIAN/control"
  mkdir -p "$folder/old/usr/share/onnx-pipe-before"
  touch "$folder/old/usr/share/onnx-pipe-before/$(basename "$package" .deb)"
  dpkg-deb -b "$folder/old" "$try/debs-before" >/dev/null
done

# PyTorch's export, where there is PyTorch.
torch=$OPIPE_SOURCE_DIR/build/venv/real/bin/python
mkdir "$folder/cffi" # of this Python, for the one that has torch
"$OPIPE_PYTHON" -c 'import cffi, _cffi_backend; print(cffi.__path__[0], _cffi_backend.__file__, sep="\n")' | xargs -I{} ln -s {} "$folder/cffi" || true
export PYTHONPATH="$OPIPE_BUILD_DIR/python:$folder/cffi"
if [ -x "$torch" ] && "$torch" -c 'import torch, onnxscript, cffi' 2>/dev/null; then
  "$torch" -B - "$try/torch.onnx" >"$folder/log" 2>&1 <<'END' || {
import sys
import onnxpipe
import torch
from torch import nn

module = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 64))
onnxpipe.from_torch(module, torch.randint(0, 64, (2, 16)), train=True, path=sys.argv[1], input_names=["input_ids"], output_names=["logits"],
                    dynamic_shapes={"input": {0: "batch", 1: "seq"}})
END
    cat "$folder/log"
    echo "FAILED: from_torch"
    exit 1
  }
else
  echo "no build/venv/real with torch: the training loop runs on the demo alone"
fi

unset PYTHONPATH
export root
unshare -m sh -c 'mount -t proc proc "$root/proc" && mount -t tmpfs tmpfs "$root/dev/shm" && exec chroot "$root" sh /try/inside.sh'
