#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The examples, built out of tree against an installed prefix alone: hosts in C, C++ and Python that only open the library, a backend
# and a schedule of under 200 lines each, a transport between processes of under 300, which then pass the conformance programs and run
# a model.
# ctest: timeout=180
set -eu
if [ -n "${OPIPE_SANITIZE:-}" ]; then
  echo "SKIP: foreign programs do not open a library built with $OPIPE_SANITIZE"
  exit 77
fi
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
cmake --install "$OPIPE_BUILD_DIR" --prefix "$prefix/usr" >"$prefix/install.log" || fail "cmake --install"
lib=$(dirname "$(find "$prefix/usr" -name libonnxpipe.so | head -n 1)")
include=$prefix/usr/include
model=$OPIPE_SOURCE_DIR/tests/data/gpt_8block/model.onnx
doc=$prefix/usr/share/doc/onnxpipe
cp -R "$doc/examples" "$doc/conformance" "$doc/demo" "$prefix/" # as installed
cd "$prefix"
strict="-Wall -Wextra -Wpedantic -Werror"

# hosts
"$OPIPE_CC" -std=c11 $strict -I"$include" examples/host.c -ldl -o host_c || fail "host.c does not build"
./host_c "$lib/libonnxpipe.so" "$model" 3 20 | grep -q "20 requests in 3 stages" || fail "host.c"
"$OPIPE_CC" -std=c11 $strict -I"$include" examples/train.c -ldl -o train_c || fail "train.c does not build"
demo=demo/model.onnx
./train_c "$lib/libonnxpipe.so" "$demo" demo/ferry.txt 2 21 "The ferry" 10 |
  awk '/^step/ { last = $4; if (first == "") first = $4 } END { exit !(last < first * 0.6) }' || fail "train.c"
"$OPIPE_CXX" -std=c++17 $strict -I"$include" examples/host.cpp -ldl -o host_cpp || fail "host.cpp does not build"
./host_cpp "$lib/libonnxpipe.so" "$model" | grep -q "2 shapes alternated" || fail "host.cpp"

"$OPIPE_CC" -std=c11 $strict -I"$include" examples/generate.c -ldl -o generate_c || fail "generate.c does not build"
./generate_c "$lib/libonnxpipe.so" "$demo" 2 8 1,2,3 4,5 >generate.txt || fail "generate.c"
grep -q "24 tokens in" generate.txt || fail "generate.c: $(cat generate.txt)"

"$OPIPE_CC" -std=c11 $strict -I"$include" examples/plan.c -ldl -o plan_c || fail "plan.c does not build"
./plan_c "$lib/libonnxpipe.so" "$demo" 8 >plan.txt || fail "plan.c"
grep -q "planner   auto" plan.txt && grep -q "output 0 of rank 3" plan.txt || fail "plan.c: $(cat plan.txt)"

# Where CUDA is built on doubles of the driver, the host with tensors on a GPU runs on those.
"$OPIPE_CC" -std=c11 $strict -I"$include" examples/gpu.c -ldl -o gpu_c || fail "gpu.c does not build"
doubles=$OPIPE_BUILD_DIR/tests/cuda
if [ -e "$doubles/libcuda.so.1" ]; then
  env OPIPE_CUDA_PATH="$doubles" OPIPE_PLUGIN_PATH="$doubles/plugins:$(dirname "$(find "$prefix/usr" -name opipe-backend-cpu.so)")" \
    ./gpu_c "$lib/libonnxpipe.so" "$model" 6 "$doubles/libcuda.so.1" >gpu.txt || fail "gpu.c: $(cat gpu.txt)"
  grep -q "6 requests on the GPU, 6 with the bits of host memory" gpu.txt || fail "gpu.c: $(cat gpu.txt)"
fi
./gpu_c "$lib/libonnxpipe.so" "$model" 1 ./no-libcuda.so | grep -q "not run: no GPU" || fail "gpu.c without a driver"

# plugins: the line count is part of the promise
for kind in backend schedule transport; do
  source=examples/$kind/plugin.c
  most=200
  [ $kind != transport ] || most=300
  [ "$(wc -l <"$source")" -lt $most ] || fail "$source has $most lines or more"
  "$OPIPE_CC" -std=c11 $strict -shared -fPIC -fvisibility=hidden -I"$include" "$source" -o "opipe-$kind-example.so" ||
    fail "$source does not build"
  names=$(nm -D --defined-only --format=posix "opipe-$kind-example.so" | cut -d' ' -f1)
  [ "$names" = opipe_plugin_v1 ] || fail "the example $kind exports: $names"
  "$OPIPE_CC" -std=c11 -D_GNU_SOURCE -I"$include" "conformance/$kind.c" conformance/conformance.c -ldl -lpthread -lm -o "conformance-$kind" ||
    fail "the conformance program for a $kind does not build out of tree"
  "./conformance-$kind" "./opipe-$kind-example.so" || fail "the example $kind does not conform"
done
for n in 2 3; do
  ./conformance-transport --processes $n ./opipe-transport-example.so || fail "the example transport does not join $n processes"
done

# and in use
run="$prefix/usr/bin/onnx-pipe run"

# A transport without reductions, made from the installed source: it conforms and infers; training on two ranks is refused.
cp -R "$doc/plugins/transport-local" plain
sed -i 's/ | OPIPE_TRANSPORT_REDUCES//; s/\(\.\(group_[a-z]*\|all_reduce\) = \)[a-z_]*/\1NULL/; s/"local"/"plain"/' plain/local.c
"$OPIPE_CC" -std=gnu11 -shared -fPIC -fvisibility=hidden -I"$include" -Iplain plain/*.c -lpthread -o opipe-transport-plain.so ||
  fail "transport-local does not build out of tree"
"$prefix/usr/libexec/onnx-pipe/conformance-transport" ./opipe-transport-plain.so | grep -q "SKIP: reductions" ||
  fail "a transport without reductions does not conform"
$run "$demo" --plugin ./opipe-transport-plain.so --transport plain --stages 2 --reference |
  grep -q "identical to the plan's reference" || fail "inference without reductions"
train() {
  "$prefix/usr/bin/onnx-pipe" train "$demo" --data text:demo/ferry.txt --loss cross-entropy:logits=logits,labels=labels,shift=1 \
    --microbatches 2 --batch 4 --steps 1 --plugin ./opipe-transport-plain.so --transport plain "$@" >train.txt 2>&1
}
train --ranks 1 || fail "training on one rank without reductions: $(cat train.txt)"
for tied in --ranks=2 --replicas=2; do # the demo's head is its embedding
  if train "$tied"; then fail "training without reductions, $tied"; fi
  grep -q "transport 'plain' cannot reduce (OPIPE_TRANSPORT_REDUCES)" train.txt || fail "$tied: $(cat train.txt)"
done
"$prefix/usr/bin/onnx-pipe" launch -n 2 -- run "$model" --plugin ./opipe-transport-example.so --transport example >processes.txt 2>&1 ||
  fail "two processes over the example transport: $(cat processes.txt)"
grep -q "2 stages on 2 ranks" processes.txt || fail "not two processes: $(cat processes.txt)"
$run "$model" --plugin ./opipe-schedule-example.so --schedule example:order=falling --bind batch=4 --microbatches 4 --depth 4 --stages 2 \
  --reference | grep -q "identical to the plan's reference" || fail "a run under the example schedule"
if $run "$model" --plugin ./opipe-backend-example.so --device example 2>refused.txt; then
  fail "a backend that knows three operators runs a transformer"
fi
grep -q "backend 'example' refuses" refused.txt || {
  cat refused.txt
  fail "the refusal of the example backend"
}
python=${OPIPE_PYTHON:-}
if [ -n "$python" ] && "$python" -c 'import torch, onnxscript' 2>/dev/null; then # as the guide says it
  "$python" -B examples/pytorch.py infer gpt >export.txt 2>&1 || fail "pytorch.py: $(tail -n 5 export.txt)"
  $run gpt --check --stages 3 --reference | grep -q "test_data_set_0: passed" || fail "what pytorch.py exported"
else
  echo "SKIP: pytorch.py: no python3 with torch and onnxscript"
fi
if [ -n "$python" ] && "$python" -c 'import cffi' 2>/dev/null; then
  "$python" -B examples/host_cffi.py "$include/opipe/cdef.h" "$lib/libonnxpipe.so" "$demo" 3 | grep -q "3 stages" || fail "host_cffi.py"
else
  echo "SKIP: host_cffi.py: no python3 with cffi"
fi
if [ -n "$python" ] && "$python" -c 'import numpy' 2>/dev/null; then
  "$python" examples/host_numpy.py "$lib/libonnxpipe.so" demo 4 || fail "host_numpy.py"
  timeout 60 "$python" -B - "$lib/libonnxpipe.so" <<'E' || fail "host_numpy.py: several requests that the host drives"
import sys

sys.path.insert(0, "examples")
import host_numpy

inputs, _ = host_numpy.data_set("demo/test_data_set_0")
batch, seq = next(iter(inputs.values())).shape[:2]
pipeline = host_numpy.Pipeline(host_numpy.Library(sys.argv[1]), "demo/model.onnx", {"batch": batch, "seq": seq}, in_flight=4, host=True)
for request in [pipeline.submit(inputs) for _ in range(4)]:
    pipeline.finish(request)
pipeline.close()
E
  "$python" -B examples/gpu_torch.py "$lib/libonnxpipe.so" "$demo" | grep -Eq "not run: no GPU|8 with the bits" || fail "gpu_torch.py"
  "$python" -B examples/train_numpy.py "$lib/libonnxpipe.so" "$demo" 2 1f1b 10 || fail "train_numpy.py"
else
  echo "SKIP: host_numpy.py, gpu_torch.py, train_numpy.py: no python3 with numpy"
fi
echo "hosts and plugins built against the installed prefix, and used"
