# SPDX-License-Identifier: Apache-2.0
# The CPU kernels as a library of their own, for their tests and benches: inside the plugin they are hidden.
file(GLOB kernel_sources CONFIGURE_DEPENDS
  ${PROJECT_SOURCE_DIR}/plugins/backend-cpu/kernels/*.c)
add_library(opi_test_kernels STATIC EXCLUDE_FROM_ALL ${kernel_sources})
target_link_libraries(opi_test_kernels PRIVATE opi_flags PUBLIC m Threads::Threads ${CMAKE_DL_LIBS})
target_compile_options(opi_test_kernels PRIVATE -ffp-contract=off -fno-math-errno)
opi_kernel_flags(${kernel_sources})
foreach(target IN LISTS OPI_TEST_TARGETS OPI_BENCH_TARGETS)
  if(target MATCHES "test_kernel_|bench_kernels")
    target_link_libraries(${target} PRIVATE opi_test_kernels)
    target_compile_options(${target} PRIVATE -ffp-contract=off)
  endif()
endforeach()

# For tests/bench/kernels.py, which loads it beside ONNX Runtime.
add_library(bench-kernels-shim SHARED EXCLUDE_FROM_ALL
  ${PROJECT_SOURCE_DIR}/tests/bench/kernels_shim.c ${kernel_sources})
target_include_directories(bench-kernels-shim PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(bench-kernels-shim PRIVATE opi_flags m Threads::Threads)
target_compile_options(bench-kernels-shim PRIVATE -ffp-contract=off -fno-math-errno)
set_target_properties(bench-kernels-shim PROPERTIES
  OUTPUT_NAME opi-bench-kernels LIBRARY_OUTPUT_DIRECTORY ${OPI_TEST_DIR}/bench)
list(APPEND OPI_BENCH_TARGETS bench-kernels-shim)
