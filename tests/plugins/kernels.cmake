# SPDX-License-Identifier: Apache-2.0
# The CPU plugin's objects as a library of their own, for tests and benches of the kernels: inside the
# plugin they are hidden.
set(kernel_objects $<TARGET_OBJECTS:opipe-backend-cpu-objects>)
add_library(opi_test_kernels STATIC EXCLUDE_FROM_ALL ${kernel_objects})
set_target_properties(opi_test_kernels PROPERTIES LINKER_LANGUAGE C)
target_link_libraries(opi_test_kernels PUBLIC opi_flags m Threads::Threads ${CMAKE_DL_LIBS})
foreach(target IN LISTS OPI_TEST_TARGETS OPI_BENCH_TARGETS)
  if(target MATCHES "test_kernel_|test_arena|bench_kernels")
    target_link_libraries(${target} PRIVATE opi_test_kernels)
    target_compile_options(${target} PRIVATE -ffp-contract=off)
  endif()
endforeach()

# For tests/bench/kernels.py and small.py, which load it beside ONNX Runtime.
add_library(bench-kernels-shim SHARED EXCLUDE_FROM_ALL
  ${PROJECT_SOURCE_DIR}/tests/bench/kernels_shim.c ${PROJECT_SOURCE_DIR}/tests/bench/peak_shim.c ${kernel_objects})
target_include_directories(bench-kernels-shim PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(bench-kernels-shim PRIVATE opi_flags m Threads::Threads)
target_compile_options(bench-kernels-shim PRIVATE -ffp-contract=off -fno-math-errno)
set_target_properties(bench-kernels-shim PROPERTIES
  OUTPUT_NAME opi-bench-kernels LIBRARY_OUTPUT_DIRECTORY ${OPI_TEST_DIR}/bench)
list(APPEND OPI_BENCH_TARGETS bench-kernels-shim)
