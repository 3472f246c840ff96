# SPDX-License-Identifier: Apache-2.0
#
# What must be there, and what may be. Optional parts end up in OPI_HAVE_<NAME>, which the summary
# reports and nothing else decides.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson>=2.13)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c>=1.3)
find_program(OPI_PROTOC_C NAMES protoc-c REQUIRED)
find_path(OPI_XXHASH_INCLUDE xxhash.h REQUIRED)
mark_as_advanced(OPI_PROTOC_C OPI_XXHASH_INCLUDE)

set(OPI_HAVE_HWLOC OFF)
if(OPIPE_WITH_HWLOC)
  pkg_check_modules(HWLOC QUIET IMPORTED_TARGET hwloc>=2)
  find_path(OPI_HWLOC_INCLUDE hwloc.h HINTS ${HWLOC_INCLUDE_DIRS})
  find_library(OPI_HWLOC_LIBRARY hwloc HINTS ${HWLOC_LIBRARY_DIRS})
  mark_as_advanced(OPI_HWLOC_INCLUDE OPI_HWLOC_LIBRARY)
  if(HWLOC_FOUND AND OPI_HWLOC_INCLUDE AND OPI_HWLOC_LIBRARY)
    set(OPI_HAVE_HWLOC ON)
  endif()
endif()

# Opened at run time; only tests ask whether it is there.
find_library(OPI_UCP NAMES libucp.so.0)
mark_as_advanced(OPI_UCP)
set(OPI_HAVE_UCX OFF)
if(OPI_UCP)
  set(OPI_HAVE_UCX ON)
endif()

set(OPI_HAVE_CUDA OFF)
set(OPI_HAVE_NCCL OFF)
if(OPIPE_WITH_CUDA)
  find_package(CUDAToolkit QUIET)
  set(OPI_HAVE_CUDA ${CUDAToolkit_FOUND})
  find_path(OPI_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(CUDAToolkit_FOUND AND OPI_NCCL_INCLUDE)
    set(OPI_HAVE_NCCL ON)
  endif()
endif()

set(OPI_HAVE_CUNIT OFF)
if(OPIPE_BUILD_TESTS)
  pkg_check_modules(CUNIT QUIET IMPORTED_TARGET cunit)
  set(OPI_HAVE_CUNIT ${CUNIT_FOUND})
endif()
find_program(OPI_ABIDIFF NAMES abidiff)
find_program(OPI_CLANG NAMES clang clang-14 clang-15 clang-16 clang-17 clang-18 clang-19)
# A virtual environment made by ./dev goes before the machine's own interpreter.
find_program(OPI_PYTHON NAMES python3
  HINTS ${PROJECT_SOURCE_DIR}/build/venv/test/bin NO_CACHE)
mark_as_advanced(OPI_ABIDIFF OPI_CLANG OPI_NCCL_INCLUDE)
