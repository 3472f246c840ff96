# SPDX-License-Identifier: Apache-2.0
# NCCL's double (tests/plugins/transport-nccl/double): libnccl.so.2 beside the doubles of CUDA's libraries, which
# cuda_zdoubles.cmake makes; that file is read before this one.
if(TARGET cuda-double-cuda)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/plugins/transport-nccl/double/*.c)
  set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -fvisibility=default)
  add_library(nccl-double SHARED ${sources})
  target_include_directories(nccl-double PRIVATE ${PROJECT_SOURCE_DIR} ${OPI_INCLUDE_DIR})
  target_link_libraries(nccl-double PRIVATE opi_flags cuda-double-cuda Threads::Threads m)
  target_compile_options(nccl-double PRIVATE -ffp-contract=off)
  set_target_properties(nccl-double PROPERTIES OUTPUT_NAME nccl SUFFIX .so.2
    LIBRARY_OUTPUT_DIRECTORY ${OPI_CUDA_DOUBLES} BUILD_RPATH "$ORIGIN")
  list(APPEND OPI_TEST_PLUGIN_TARGETS nccl-double)
  # Ranks of processes, on GPUs of the doubles. A killed process is noticed by its peers alone: there is no team.
  set(name conformance/transport-nccl-processes-3)
  add_test(NAME ${name} COMMAND conformance-transport --processes 3
    --on cuda=${OPI_CUDA_DOUBLES}/plugins/opipe-backend-cuda.so ${OPI_PLUGIN_DIR}/opipe-transport-nccl.so check=1,record=no)
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS unit
    ENVIRONMENT "${OPI_CUDA_ENVIRONMENT};OPIPE_CUDA_DOUBLE_DEVICES=3;OPIPE_NCCL_DOUBLE_REMOTE=1;OPIPE_NCCL_DOUBLE_LATE=die")
endif()
foreach(target IN LISTS OPI_TEST_TARGETS)
  if(target MATCHES "^plugins-transport-nccl-test_" AND TARGET nccl-double)
    string(REGEX REPLACE "^plugins-transport-nccl-" "plugins/transport-nccl/" name ${target})
    target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
    if(target MATCHES "test_proof$")
      target_link_libraries(${target} PRIVATE opi_test_train)
    endif()
    if(target MATCHES "declarations")
      target_include_directories(${target} SYSTEM PRIVATE ${cuda_headers})
    endif()
    set_tests_properties(${name} PROPERTIES ENVIRONMENT
      "${OPI_CUDA_ENVIRONMENT};OPIPE_PLUGIN_PATH=${OPI_CUDA_DOUBLES}/plugins:${OPI_PLUGIN_DIR}")
  endif()
endforeach()
