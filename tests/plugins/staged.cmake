# SPDX-License-Identifier: Apache-2.0
# The staged transport, a plugin of the tests, with transport-local in it: opipe-transport-staged.so
# below build/tests/plugins/.
set(folder ${PROJECT_SOURCE_DIR}/plugins/transport-local)
file(GLOB local_sources CONFIGURE_DEPENDS ${folder}/*.c)
add_library(opi_staged_local STATIC EXCLUDE_FROM_ALL ${local_sources})
opi_plugin_settings(opi_staged_local ${folder})
target_compile_definitions(opi_staged_local PRIVATE OPIPE_PLUGIN_STATIC_ID=transport_local)
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/transport-staged)
file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
opi_add_plugin(opipe-transport-staged ${OPI_TEST_DIR}/plugins opipe-transport-staged ${folder}
  ${sources})
target_link_libraries(opipe-transport-staged PRIVATE opi_staged_local)
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-transport-staged)
