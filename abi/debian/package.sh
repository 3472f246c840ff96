#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Debian packages and a tarball of this tree, in build/package (./dev package):  package.sh [--no-cuda]
# The sources and this folder, as debian/, are copied to a folder of their own and built there by dpkg-buildpackage; lintian's errors fail.
# OPIPE_JOBS: parallel jobs. OPIPE_CMAKE: more arguments of cmake, as -DOPIPE_CUDA_CHIPS=90.
set -eu
cd "$(dirname "$0")/../.."
version=$(sed -n 's/^#define OPIPE_VERSION "\(.*\)"/\1/p' abi/include/opipe/abi.h)
out=$(pwd)/build/package
source=$out/onnx-pipe-$version

# Exit status 0: there is an nvcc that says which chips it knows.
has_nvcc() {
  for nvcc in "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    [ -x "$nvcc" ] || continue
    "$nvcc" --list-gpu-code 2>/dev/null | grep -q sm_ && return 0
  done
  return 1
}

cuda=no
case ${1:-} in
  '') ! has_nvcc || cuda=yes ;;
  --no-cuda) ;;
  *)
    echo "package.sh: unknown argument '$1' (--no-cuda)" >&2
    exit 2
    ;;
esac

rm -rf "$out"
mkdir -p "$source/tests/data" "$source/tests/bench/records"
cp -R CMakeLists.txt LICENSE README.md abi loader partition plugins runtime "$source"
cp -R tests/examples tests/conformance "$source/tests"
cp -R tests/data/demo tests/data/text "$source/tests/data"
cp tests/bench/records/*.md "$source/tests/bench/records"
find "$source" -name __pycache__ -prune -exec rm -rf {} +
cp -R abi/debian "$source/debian"
date=$(git log -1 --format=%aD 2>/dev/null || LC_ALL=C date -R)
sed "s/@VERSION@/$version/; s/@DATE@/$date/" abi/debian/changelog.in >"$source/debian/changelog"

if command -v ccache >/dev/null; then # debhelper gives the build another home and locale, which the cache would take for other builds
  CCACHE_DIR=$(ccache --get-config cache_dir) CCACHE_BASEDIR=$source CCACHE_NOHASHDIR=1 CCACHE_DEPEND=1
  CMAKE_C_COMPILER_LAUNCHER="env;-u;LC_ALL;ccache"
  export CCACHE_DIR CCACHE_BASEDIR CCACHE_NOHASHDIR CCACHE_DEPEND CMAKE_C_COMPILER_LAUNCHER
fi
DEB_BUILD_OPTIONS="parallel=${OPIPE_JOBS:-2} noautodbgsym" DEB_CFLAGS_STRIP=-g
export DEB_BUILD_OPTIONS DEB_CFLAGS_STRIP
profile=
[ "$cuda" = no ] || profile=pkg.onnx-pipe.cuda
cd "$source"
dpkg-buildpackage --build=binary --no-sign ${profile:+"-P$profile"} >"$out/build.log" 2>&1 || {
  tail -n 40 "$out/build.log"
  echo "package.sh: dpkg-buildpackage failed (whole log: build/package/build.log)" >&2
  exit 1
}

# The same tree, which can be moved.
tree=onnx-pipe-$version-linux-$(uname -m)
cmake --install obj --prefix "$out/$tree" --strip >>"$out/build.log"
epoch=$(dpkg-parsechangelog -S Timestamp)
cd "$out"
tar -c --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner "$tree" | gzip -9n >"$tree.tar.gz"

lintian --allow-root --fail-on error --tag-display-limit 0 ./*.changes || {
  echo "package.sh: lintian finds errors" >&2
  exit 1
}
rm -rf "$source" "$tree"
echo "version $version, CUDA: $cuda"
ls -1 "$out"/*.deb "$out/$tree.tar.gz"
