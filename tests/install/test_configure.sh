#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The project configures on a machine whose optional packages are there by half: Open MPI's run-time and compiler wrapper
# without its headers (which nothing here may look for), hwloc's pkg-config file alone, an nvcc that cannot run. The
# summary says of each what that build lacks.
set -eu
fakes=$(mktemp -d)
trap 'rm -rf "$fakes"' EXIT
mkdir "$fakes/bin" "$fakes/pkgconfig"
fail() {
  cat "$fakes/log" >&2
  echo "FAILED: $*" >&2
  exit 1
}

cat >"$fakes/bin/mpicc" <<'END'
#!/bin/sh
touch "$(dirname "$0")/../mpicc-was-asked"
case "$*" in
  *showme:compile*) echo "-I/nonexistent/openmpi/include -pthread" ;;
  *showme:link*) echo "-pthread -L/nonexistent/openmpi/lib -lmpi" ;;
  *showme:incdirs*) echo "/nonexistent/openmpi/include" ;;
  *showme:libdirs*) echo "/nonexistent/openmpi/lib" ;;
  *showme:libs*) echo "mpi" ;;
  *showme:version*) echo "mpicc: Open MPI 4.1.4 (Language: C)" ;;
  *showme*) echo "cc -I/nonexistent/openmpi/include -pthread -L/nonexistent/openmpi/lib -lmpi" ;;
  *) exec cc "$@" ;;
esac
END
printf '#!/bin/sh\nexit 1\n' | tee "$fakes/bin/nvcc" >"$fakes/bin/fatbinary"
chmod +x "$fakes/bin/mpicc" "$fakes/bin/nvcc" "$fakes/bin/fatbinary"
for package in hwloc:2.9.0 ompi-c:4.1.4 cuda:12.4; do
  cat >"$fakes/pkgconfig/${package%:*}.pc" <<END
Name: ${package%:*}
Description: of which nothing else is there
Version: ${package#*:}
Cflags: -I/nonexistent/include
Libs: -L/nonexistent/lib -l${package%:*}
END
done

# Empty: not searched for, as where it is nowhere.
env PATH="$fakes/bin:$PATH" PKG_CONFIG_PATH="$fakes/pkgconfig" CUDA_PATH= cmake -S "$OPIPE_SOURCE_DIR" -B "$fakes/build" \
  -DCMAKE_BUILD_TYPE=Release -DOPIPE_BUILD_TESTS=OFF -DOPI_HWLOC_INCLUDE= \
  -DOPI_NVCC="$fakes/bin/nvcc" -DOPI_FATBINARY="$fakes/bin/fatbinary" >"$fakes/log" 2>&1 || fail "configuring"
[ ! -e "$fakes/mpicc-was-asked" ] || fail "MPI was looked for"
grep -q 'hwloc *: not found' "$fakes/log" || fail "hwloc without its headers counts as found"
grep -q 'backend-cuda.*does not say which chips it knows' "$fakes/log" || fail "an nvcc that cannot run is used"
grep -q 'Generating done' "$fakes/log" || fail "no build files"
echo "configured with halves of Open MPI, hwloc and CUDA"
