# SPDX-License-Identifier: Apache-2.0
# A transport that goes wrong at an exact instant, as the environment asks, with transport-shm in it:
# opipe-transport-impaired.so below build/tests/plugins/.
set(folder ${PROJECT_SOURCE_DIR}/plugins/transport-shm)
file(GLOB shm_sources CONFIGURE_DEPENDS ${folder}/*.c)
add_library(opi_impaired_shm STATIC EXCLUDE_FROM_ALL ${shm_sources})
opi_plugin_settings(opi_impaired_shm ${folder})
target_include_directories(opi_impaired_shm PRIVATE ${PROJECT_SOURCE_DIR}/plugins/machine)
target_compile_definitions(opi_impaired_shm PRIVATE OPIPE_PLUGIN_STATIC_ID=transport_shm)
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/transport-impaired)
opi_add_plugin(opipe-transport-impaired ${OPI_TEST_DIR}/plugins opipe-transport-impaired ${folder}
  ${folder}/impaired.c ${folder}/fault.c)
target_link_libraries(opipe-transport-impaired PRIVATE opi_impaired_shm)
target_sources(opipe-transport-impaired PRIVATE $<TARGET_OBJECTS:opipe-machine-objects>)
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-transport-impaired)
add_library(opi_fault_preload MODULE ${folder}/preload.c ${folder}/fault.c)
opi_plugin_settings(opi_fault_preload ${folder})
set_target_properties(opi_fault_preload PROPERTIES
  OUTPUT_NAME fault-preload LIBRARY_OUTPUT_DIRECTORY ${OPI_TEST_DIR}/plugins)
list(APPEND OPI_TEST_PLUGIN_TARGETS opi_fault_preload)
