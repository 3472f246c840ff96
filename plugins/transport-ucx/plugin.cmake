# SPDX-License-Identifier: Apache-2.0
# Contains transport-shm, for ranks of one machine. UCX itself is opened at run time.
include(${PROJECT_SOURCE_DIR}/plugins/machine/machine.cmake)
list(APPEND plugin_more $<TARGET_OBJECTS:opipe-transport-shm-objects>)
target_sources(${plugin_target} PRIVATE $<TARGET_OBJECTS:opipe-transport-shm-objects>)
target_link_libraries(${plugin_target} PRIVATE ${CMAKE_DL_LIBS})
