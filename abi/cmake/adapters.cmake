# SPDX-License-Identifier: Apache-2.0
#
# Adapters inside other frameworks: plugins/host-<name>/ becomes a library beside libonnxpipe.so,
# under the name that its adapter.cmake sets (`adapter_file`, without .so). It sees abi/include and
# its own folder, and exports what its exports.map says.
file(GLOB adapter_folders CONFIGURE_DEPENDS LIST_DIRECTORIES true ${PROJECT_SOURCE_DIR}/plugins/host-*)
set(OPI_ADAPTER_TARGETS)
foreach(folder IN LISTS adapter_folders)
  get_filename_component(folder_name ${folder} NAME)
  file(GLOB adapter_sources CONFIGURE_DEPENDS ${folder}/*.c)
  include(${folder}/adapter.cmake)
  set(adapter_target opipe-${folder_name})
  add_library(${adapter_target} MODULE ${adapter_sources})
  opi_plugin_settings(${adapter_target} ${folder})
  target_compile_definitions(${adapter_target} PRIVATE _GNU_SOURCE)
  target_link_libraries(${adapter_target} PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(${adapter_target} PROPERTIES OUTPUT_NAME ${adapter_file})
  opi_export_only(${adapter_target} ${folder}/exports.map)
  install(TARGETS ${adapter_target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  list(APPEND OPI_ADAPTER_TARGETS ${adapter_target})
endforeach()
add_custom_target(adapters DEPENDS ${OPI_ADAPTER_TARGETS})
