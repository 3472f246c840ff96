# SPDX-License-Identifier: Apache-2.0
# Plugins of the tests that lack something or go wrong, as the environment asks: opipe-backend-impaired.so
# and opipe-transport-impaired.so below build/tests/plugins/.
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-impaired)
opi_add_plugin(opipe-backend-impaired ${OPI_TEST_DIR}/plugins opipe-backend-impaired ${folder}
  ${folder}/impaired.c)
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-backend-impaired)
set(folder ${PROJECT_SOURCE_DIR}/plugins/transport-local)
file(GLOB local_sources CONFIGURE_DEPENDS ${folder}/*.c)
add_library(opi_impaired_local STATIC EXCLUDE_FROM_ALL ${local_sources})
opi_plugin_settings(opi_impaired_local ${folder})
target_compile_definitions(opi_impaired_local PRIVATE OPIPE_PLUGIN_STATIC_ID=transport_local)
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/transport-impaired)
opi_add_plugin(opipe-transport-impaired ${OPI_TEST_DIR}/plugins opipe-transport-impaired ${folder}
  ${folder}/impaired.c)
target_link_libraries(opipe-transport-impaired PRIVATE opi_impaired_local)
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-transport-impaired)
