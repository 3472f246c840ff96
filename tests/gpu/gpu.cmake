# SPDX-License-Identifier: Apache-2.0
# gpu-ceilings: measures a GPU from within a bundle (tests/gpu/README.md). It stands on the plugin's own way to the
# vendor's libraries and links none of them.
add_executable(gpu-ceilings EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/gpu/ceilings.c
  ${PROJECT_SOURCE_DIR}/plugins/backend-cuda/libraries.c)
target_include_directories(gpu-ceilings PRIVATE ${PROJECT_SOURCE_DIR}/plugins/backend-cuda ${OPI_INCLUDE_DIR})
target_link_libraries(gpu-ceilings PRIVATE opi_flags m Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(gpu-ceilings PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${OPI_TEST_DIR})
list(APPEND OPI_TEST_PLUGIN_TARGETS gpu-ceilings)

# gpu-host: the example of a host with tensors on the GPU, which opens the library and the driver itself.
add_executable(gpu-host EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/examples/gpu.c)
target_include_directories(gpu-host PRIVATE ${OPI_INCLUDE_DIR})
target_link_libraries(gpu-host PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(gpu-host PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${OPI_TEST_DIR})
list(APPEND OPI_TEST_PLUGIN_TARGETS gpu-host)

# gpu-memory: what a session takes beside its plan; opens the library and the driver itself.
add_executable(gpu-memory EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/gpu/memory.c)
target_include_directories(gpu-memory PRIVATE ${OPI_INCLUDE_DIR})
target_link_libraries(gpu-memory PRIVATE opi_flags ${CMAKE_DL_LIBS})
set_target_properties(gpu-memory PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${OPI_TEST_DIR})
list(APPEND OPI_TEST_PLUGIN_TARGETS gpu-memory)

# gpu-latency: requests of one sample, one after another.
add_executable(gpu-latency EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/gpu/latency.c)
target_include_directories(gpu-latency PRIVATE ${OPI_INCLUDE_DIR})
target_link_libraries(gpu-latency PRIVATE opi_flags ${CMAKE_DL_LIBS})
set_target_properties(gpu-latency PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${OPI_TEST_DIR})
list(APPEND OPI_TEST_PLUGIN_TARGETS gpu-latency)

# What a bundle holds.
set(programs ${OPI_TEST_TARGETS})
list(FILTER programs INCLUDE REGEX "^plugins-backend-cuda-kernels-test_")
add_custom_target(gpu-programs DEPENDS onnxpipe onnx-pipe plugins conformance gpu-ceilings gpu-host gpu-latency gpu-memory ${programs})
