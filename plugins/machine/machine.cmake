# SPDX-License-Identifier: Apache-2.0
# The shared part of transports of one machine, compiled once and linked into each plugin whose plugin.cmake
# includes this file (it sees plugin_target).
if(NOT TARGET opipe-machine-objects)
  file(GLOB machine_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/plugins/machine/*.c)
  add_library(opipe-machine-objects OBJECT ${machine_sources})
  opi_plugin_settings(opipe-machine-objects ${PROJECT_SOURCE_DIR}/plugins/machine)
endif()
set(plugin_more $<TARGET_OBJECTS:opipe-machine-objects>)
target_sources(${plugin_target} PRIVATE ${plugin_more})
