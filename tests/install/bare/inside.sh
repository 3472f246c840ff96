#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run by root inside the bare system of test_bare_full.sh, whose /try holds what is installed and used:
#   wheels/ (with README's lines: readme.sh)  debs/ debs-before/  tree.tar.gz  consumer.c host.c demo/ train.py torch.onnx
set -eu
cd /try
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
# says TEXT COMMAND...: the command ends well and prints the text.
says() {
  text=$1
  shift
  "$@" >said 2>&1 || fail "$*: $(tail -n 20 said)"
  grep -q -- "$text" said || fail "$* does not say '$text': $(tail -n 20 said)"
}
quiet() { "$@" >said 2>&1 || fail "$*: $(tail -n 20 said)"; }

# ---- the wheel
python3 -m venv env
quiet env/bin/pip install --no-index --find-links wheels wheels/onnxpipe-*.whl
says "(1, 8, 256)" sh wheels/readme.sh
says "1 request in" env/bin/python -m onnxpipe run demo/model.onnx --stages 2
mkdir trained
for model in demo/model.onnx torch.onnx; do
  [ -f "$model" ] || continue
  says "step 20" env/bin/python train.py "$model" trained
  awk '/^step/ { sub(/,/, "", $4); if (first == "") first = $4; last = $4 } END { exit !(last < first) }' said || fail "$model: the loss does not fall"
  says "1 request in" env/bin/onnx-pipe run trained/trained.onnx
  rm -r trained/*
done
echo "wheel: installed and used"

# ---- the packages
everything() { find / -xdev -path /proc -prune -o -path /dev -prune -o -path /try -prune -o -path /tmp -prune -o -path /var/cache -prune -o \
  -path /var/log -prune -o -path /var/lib/apt -prune -o -path /var/lib/dpkg -prune -o -path /root -prune -o -print | sort; }
quiet apt-get update
everything >before
quiet apt-get install -y --no-install-recommends ./debs-before/*.deb
quiet apt-get install -y --no-install-recommends ./debs/*.deb
dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\n' | grep -E '^(lib)?onnx-?pipe' >packages
[ "$(grep -c " $(cat version) installed" packages)" = "$(ls debs | wc -l)" ] || fail "upgraded: $(cat packages)"
says "1 request in" onnx-pipe run demo/model.onnx --stages 2 --reference
says "identical to the plan's reference" onnx-pipe run demo/model.onnx --stages 2 --reference
says "^ok.*backend.*cpu" onnx-pipe plugins --why
says "node" onnx-pipe plan demo/model.onnx --cluster h100
says "onnx-pipe" env MANPAGER=cat man onnx-pipe
says "--stages" env MANPAGER=cat man onnx-pipe-run
[ -f /usr/share/bash-completion/completions/onnx-pipe ] || fail "no completion"
# shellcheck disable=SC2046
gcc -std=c11 -Wall -Werror consumer.c -o consumer $(pkg-config --cflags --libs onnxpipe)
says "^version [0-9]" ./consumer
gcc -std=c11 host.c -ldl -o host
says "8 requests in 4 stages" ./host libonnxpipe.so.1 demo/model.onnx 4
says " 0 failed" /usr/libexec/onnx-pipe/conformance-schedule /usr/lib/*/onnx-pipe/opipe-schedule-gpipe.so
for library in /usr/lib/*/onnx-pipe/hosts/*.so /usr/lib/*/triton/onnxpipe/*.so; do
  if ldd "$library" | grep "not found"; then fail "$library"; fi
done
echo "packages: installed, upgraded and used"

# ---- the tarball, where the packages' libraries are
mkdir moved
tar -C moved -xf tree.tar.gz --strip-components=1
says "1 request in" moved/bin/onnx-pipe run demo/model.onnx --stages 2
says "$(pwd)/moved/lib" moved/bin/onnx-pipe plugins --why
echo "tarball: used"

# ---- and gone
# shellcheck disable=SC2046
quiet apt-get purge -y $(cut -d' ' -f1 packages)
quiet apt-get autoremove --purge -y
everything >after
diff before after >rests || fail "left behind: $(head -n 20 rests)"
dpkg-query -W | grep -E '^(lib)?onnx-?pipe' && fail "still known to dpkg"
echo "packages: nothing left behind"
