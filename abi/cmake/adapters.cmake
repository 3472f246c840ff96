# SPDX-License-Identifier: Apache-2.0
#
# Adapters inside other frameworks: plugins/host-<name>/ becomes a library below lib/, in the folder
# and under the name that its adapter.cmake sets (`adapter_folder`, "." beside libonnxpipe.so;
# `adapter_file`, without .so; `adapter_libraries`, what it links). It sees abi/include, plugins/hosts,
# which every adapter has a copy of, and its own folder, and exports what its exports.map says.
file(GLOB adapter_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/plugins/host-*)
file(GLOB adapter_common CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/plugins/hosts/*.c)
set(OPI_ADAPTER_TARGETS)
foreach(folder IN LISTS adapter_folders)
  get_filename_component(folder_name ${folder} NAME)
  file(GLOB adapter_sources CONFIGURE_DEPENDS ${folder}/*.c)
  set(adapter_folder .)
  set(adapter_libraries)
  include(${folder}/adapter.cmake)
  set(adapter_target opipe-${folder_name})
  add_library(${adapter_target} MODULE ${adapter_sources} ${adapter_common})
  opi_plugin_settings(${adapter_target} ${folder})
  target_include_directories(${adapter_target} PRIVATE ${PROJECT_SOURCE_DIR}/plugins)
  target_compile_definitions(${adapter_target} PRIVATE _GNU_SOURCE)
  target_link_libraries(${adapter_target} PRIVATE ${adapter_libraries} ${CMAKE_DL_LIBS})
  set_target_properties(${adapter_target} PROPERTIES OUTPUT_NAME ${adapter_file}
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/${adapter_folder})
  opi_export_only(${adapter_target} ${folder}/exports.map)
  install(TARGETS ${adapter_target}
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/${adapter_folder})
  list(APPEND OPI_ADAPTER_TARGETS ${adapter_target})
endforeach()
add_custom_target(adapters DEPENDS ${OPI_ADAPTER_TARGETS})
