# SPDX-License-Identifier: Apache-2.0
# Plans of cuDNN without a GPU (tests/plugins/backend-cuda/plans), in build/tests/cuda-plans: the plugin's graphs, and a
# driver that nothing runs on, for this program alone.
set(OPI_CUDA_PLANS ${OPI_TEST_DIR}/cuda-plans)
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-cuda/plans)
set_source_files_properties(${folder}/driver.c PROPERTIES COMPILE_OPTIONS -fvisibility=default)
add_library(cuda-plans-driver SHARED EXCLUDE_FROM_ALL ${folder}/driver.c)
set_target_properties(cuda-plans-driver PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
  LIBRARY_OUTPUT_DIRECTORY ${OPI_CUDA_PLANS})
target_link_libraries(cuda-plans-driver PRIVATE opi_flags)
add_executable(cuda-plans EXCLUDE_FROM_ALL ${folder}/plans.c
  ${PROJECT_SOURCE_DIR}/plugins/backend-cuda/cudnn_graph.c ${PROJECT_SOURCE_DIR}/plugins/backend-cuda/cudnn_plan.c)
target_include_directories(cuda-plans PRIVATE ${PROJECT_SOURCE_DIR}/plugins/backend-cuda ${OPI_INCLUDE_DIR})
target_link_libraries(cuda-plans PRIVATE opi_flags Threads::Threads ${CMAKE_DL_LIBS})
set_target_properties(cuda-plans PROPERTIES OUTPUT_NAME plans RUNTIME_OUTPUT_DIRECTORY ${OPI_CUDA_PLANS})
list(APPEND OPI_TEST_PLUGIN_TARGETS cuda-plans cuda-plans-driver)
