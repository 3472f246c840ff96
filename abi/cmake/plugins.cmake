# SPDX-License-Identifier: Apache-2.0
#
# Every folder plugins/<kind>-<id>/ becomes lib/onnx-pipe/opipe-<kind>-<id>.so. A plugin sees
# abi/include and its own folder, nothing else of ours, and exports opipe_plugin_v1 alone.
# A folder may hold a plugin.cmake for what it needs besides; it sees `plugin_target` (linked),
# `plugin_objects` (compiled, may be empty), and may set `plugin_skip` to a reason to leave it out, or
# `plugin_more` to objects that both its module and its static archive contain.
# A family of plugins from one folder lists its ids, one a line, in ids.txt: one .so for each, the
# source that holds the descriptor compiled once per id with OPIPE_PLUGIN_ID set to it (a string),
# the others compiled once for all.
set(OPI_PLUGIN_DIR ${PROJECT_BINARY_DIR}/lib/onnx-pipe)

function(opi_plugin_settings target folder)
  target_include_directories(${target} PRIVATE ${folder} ${OPI_INCLUDE_DIR})
  target_link_libraries(${target} PRIVATE opi_flags Threads::Threads m)
  set_target_properties(${target} PROPERTIES PREFIX "")
endfunction()

# Builds `sources` (and objects) as a loadable plugin `file` (without .so) in `directory`.
function(opi_add_plugin target directory file folder)
  add_library(${target} MODULE ${ARGN})
  opi_plugin_settings(${target} ${folder})
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME ${file} LIBRARY_OUTPUT_DIRECTORY ${directory})
  opi_export_only(${target} ${PROJECT_SOURCE_DIR}/abi/cmake/plugin.map)
endfunction()

# Splits sources into those that define the descriptor, whose name depends on how the plugin is
# linked, and the rest, which is compiled once.
function(opi_split_sources out_descriptor out_rest)
  set(descriptor)
  set(rest)
  foreach(source IN LISTS ARGN)
    file(STRINGS ${source} found REGEX
      "OPIPE_PLUGIN_SYMBOL *=|^OPIPE_STATELESS_PLUGIN|^OPIPE_SCHEDULE_PLUGIN" LIMIT_COUNT 1)
    if(found)
      list(APPEND descriptor ${source})
    else()
      list(APPEND rest ${source})
    endif()
  endforeach()
  set(${out_descriptor} "${descriptor}" PARENT_SCOPE)
  set(${out_rest} "${rest}" PARENT_SCOPE)
endfunction()

set(OPI_PLUGINS)
set(OPI_PLUGIN_TARGETS)
set(OPI_STATIC_PLUGIN_TARGETS)
set(static_declarations "")
set(static_entries "")
set(OPI_PLUGINS_LEFT_OUT)
file(GLOB plugin_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true
  ${PROJECT_SOURCE_DIR}/plugins/backend-* ${PROJECT_SOURCE_DIR}/plugins/schedule-*
  ${PROJECT_SOURCE_DIR}/plugins/transport-*)
foreach(folder IN LISTS plugin_folders)
  get_filename_component(folder_name ${folder} NAME)
  file(GLOB_RECURSE plugin_sources CONFIGURE_DEPENDS ${folder}/*.c)
  if(NOT plugin_sources)
    continue()
  endif()
  opi_kernel_flags(${plugin_sources})
  opi_split_sources(descriptor_sources object_sources ${plugin_sources})
  set(plugin_objects)
  if(object_sources)
    set(plugin_objects opipe-${folder_name}-objects)
    add_library(${plugin_objects} OBJECT ${object_sources})
    opi_plugin_settings(${plugin_objects} ${folder})
    set(object_sources $<TARGET_OBJECTS:${plugin_objects}>)
  endif()
  string(REGEX MATCH "^[a-z]+" plugin_kind ${folder_name})
  set(plugin_names ${folder_name})
  if(EXISTS ${folder}/ids.txt)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${folder}/ids.txt)
    file(STRINGS ${folder}/ids.txt plugin_names)
    list(TRANSFORM plugin_names PREPEND "${plugin_kind}-")
  endif()
  foreach(plugin IN LISTS plugin_names)
    set(plugin_target opipe-${plugin})
    string(LENGTH "${plugin_kind}-" plugin_skipped) # a replacement of "^..." would be done again
    string(SUBSTRING ${plugin} ${plugin_skipped} -1 plugin_id)
    opi_add_plugin(${plugin_target} ${OPI_PLUGIN_DIR} opipe-${plugin} ${folder}
      ${descriptor_sources} ${object_sources})
    target_compile_definitions(${plugin_target} PRIVATE OPIPE_PLUGIN_ID="${plugin_id}")
    if(plugin STREQUAL "backend-cpu" AND plugin_objects)
      # The same bits on every instruction set: a product and a sum are joined only where we say so.
      target_compile_options(${plugin_objects} PRIVATE -ffp-contract=off -fno-math-errno)
    endif()
    unset(plugin_skip)
    unset(plugin_more)
    include(${folder}/plugin.cmake OPTIONAL)
    if(plugin_skip)
      set_target_properties(${plugin_target} ${plugin_objects} PROPERTIES EXCLUDE_FROM_ALL ON)
      list(APPEND OPI_PLUGINS_LEFT_OUT "${plugin} (${plugin_skip})")
      continue()
    endif()
    list(APPEND OPI_PLUGINS ${plugin})
    list(APPEND OPI_PLUGIN_TARGETS ${plugin_target})
    install(TARGETS ${plugin_target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/onnx-pipe)

    if(OPIPE_STATIC_PLUGINS)
      string(REPLACE "-" "_" static_id ${plugin})
      add_library(${plugin_target}-static STATIC ${descriptor_sources} ${object_sources}
        ${plugin_more})
      opi_plugin_settings(${plugin_target}-static ${folder})
      target_compile_definitions(${plugin_target}-static PRIVATE
        OPIPE_PLUGIN_STATIC_ID=${static_id} OPIPE_PLUGIN_ID="${plugin_id}")
      set_target_properties(${plugin_target}-static PROPERTIES OUTPUT_NAME lib${plugin_target})
      list(APPEND OPI_STATIC_PLUGIN_TARGETS ${plugin_target}-static)
      install(TARGETS ${plugin_target}-static ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
      string(APPEND static_declarations
        "extern const opipe_plugin OPIPE_PLUGIN_STATIC(${static_id});\n")
      string(APPEND static_entries "  &OPIPE_PLUGIN_STATIC(${static_id}),\n")
    endif()
  endforeach()
endforeach()

# opi_static_plugins: every plugin linked in, with the list that a host registers one by one.
if(OPIPE_STATIC_PLUGINS)
  file(CONFIGURE OUTPUT ${OPI_GENERATED_DIR}/static_plugins.c CONTENT
"/* Every plugin of this build, ended by NULL. */
#include \"opipe/abi.h\"
@static_declarations@
extern const opipe_plugin *const opi_static_plugins[];
const opipe_plugin *const opi_static_plugins[] = {
@static_entries@  NULL};
" @ONLY)
  add_library(opi_static_plugins STATIC EXCLUDE_FROM_ALL ${OPI_GENERATED_DIR}/static_plugins.c)
  target_include_directories(opi_static_plugins PRIVATE ${OPI_INCLUDE_DIR})
  target_link_libraries(opi_static_plugins PRIVATE opi_flags PUBLIC ${OPI_STATIC_PLUGIN_TARGETS})
endif()
add_custom_target(plugins DEPENDS ${OPI_PLUGIN_TARGETS})
