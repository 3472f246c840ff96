# SPDX-License-Identifier: Apache-2.0
#
# The toy model and backend of the runtime's tests, and the plugins that they run over, linked statically.
if(OPI_HAVE_CUNIT)
  add_library(opi_runtime_toy STATIC EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_SOURCE_DIR}/runtime/toy_backend.c
    ${CMAKE_CURRENT_SOURCE_DIR}/runtime/toy_model.c
    ${CMAKE_CURRENT_SOURCE_DIR}/runtime/toy_run.c
    ${CMAKE_CURRENT_SOURCE_DIR}/runtime/held.c)
  target_link_libraries(opi_runtime_toy PUBLIC opi_test_support)
  foreach(path plugins/transport-local plugins/transport-emulated plugins/backend-emulated
      tests/plugins/transport-strict)
    get_filename_component(id ${path} NAME)
    set(folder ${PROJECT_SOURCE_DIR}/${path})
    file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
    list(FILTER sources EXCLUDE REGEX "/test_[^/]*$")
    if(NOT sources)
      continue()
    endif()
    string(REPLACE - _ static_id ${id})
    add_library(opi_toy_${static_id} STATIC EXCLUDE_FROM_ALL ${sources})
    opi_plugin_settings(opi_toy_${static_id} ${folder})
    target_compile_definitions(opi_toy_${static_id} PRIVATE OPIPE_PLUGIN_STATIC_ID=${static_id})
    target_link_libraries(opi_runtime_toy PUBLIC opi_toy_${static_id})
  endforeach()
  foreach(target IN LISTS OPI_TEST_TARGETS OPI_BENCH_TARGETS)
    if(target MATCHES "^runtime-test_|^plugins-transport-|^plugins-backend-emulated-|^bench-bench_handoff$")
      target_link_libraries(${target} PRIVATE opi_runtime_toy)
    endif()
  endforeach()
endif()
