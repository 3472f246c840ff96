# SPDX-License-Identifier: Apache-2.0
#
# The library: one set of position-independent objects, linked once as libonnxpipe.so (which exports
# opipe_get_api alone) and once as a static archive in which tests see internal names.
set(OPI_INCLUDE_DIR ${PROJECT_SOURCE_DIR}/abi/include)
set(OPI_GENERATED_DIR ${PROJECT_BINARY_DIR}/generated)

file(GLOB_RECURSE core_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  loader/*.c partition/*.c runtime/*.c)
file(GLOB abi_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  abi/registry/*.c abi/api/*.c abi/api/team/*.c)
if(OPIPE_STUDY)
  list(FILTER abi_sources EXCLUDE REGEX "/without_study\\.c$")
  list(FILTER core_sources EXCLUDE REGEX "/without_page\\.c$")
else() # what answers for it stands in abi/api/without_study.c
  list(FILTER abi_sources EXCLUDE REGEX "^abi/api/(machine|profile|search|simulate|strategy|study)\\.c$")
  list(FILTER core_sources EXCLUDE REGEX "^partition/study/|^runtime/trace/page\\.c$")
endif()
file(GLOB proto_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR} loader/wire/*.proto)

set(generated_sources)
foreach(proto IN LISTS proto_sources)
  get_filename_component(folder ${proto} DIRECTORY)
  get_filename_component(name ${proto} NAME_WE)
  set(out ${OPI_GENERATED_DIR}/${folder}/${name}.pb-c)
  file(MAKE_DIRECTORY ${OPI_GENERATED_DIR}/${folder})
  add_custom_command(OUTPUT ${out}.c ${out}.h
    COMMAND ${OPI_PROTOC_C} --proto_path=${PROJECT_SOURCE_DIR} --c_out=${OPI_GENERATED_DIR} ${proto}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
    DEPENDS ${PROJECT_SOURCE_DIR}/${proto}
    COMMENT "protoc-c ${proto}" VERBATIM)
  list(APPEND generated_sources ${out}.c)
  set_source_files_properties(${out}.c PROPERTIES COMPILE_OPTIONS "-w" SKIP_LINTING ON)
endforeach()

# The document of pages (partition/study/page), as C arrays.
if(OPIPE_STUDY)
  file(GLOB page_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/partition/study/page/web/*)
  set(page_document ${OPI_GENERATED_DIR}/partition/study/page/document.c)
  file(MAKE_DIRECTORY ${OPI_GENERATED_DIR}/partition/study/page)
  add_custom_command(OUTPUT ${page_document}
    COMMAND ${CMAKE_COMMAND} -DFOLDER=${PROJECT_SOURCE_DIR}/partition/study/page/web -DOUT=${page_document}
      -P ${PROJECT_SOURCE_DIR}/abi/cmake/page.cmake
    DEPENDS ${page_sources} ${PROJECT_SOURCE_DIR}/abi/cmake/page.cmake
    COMMENT "partition/study/page/web" VERBATIM)
  list(APPEND generated_sources ${page_document})
endif()

# What every source of the core may include: its own tree from the top ("loader/base/...") and
# the public headers ("opipe/...").
add_library(opi_core_usage INTERFACE)
target_include_directories(opi_core_usage INTERFACE ${PROJECT_SOURCE_DIR} ${OPI_INCLUDE_DIR})
target_include_directories(opi_core_usage SYSTEM INTERFACE
  ${OPI_GENERATED_DIR} ${OPI_GENERATED_DIR}/loader/wire
  ${OPI_XXHASH_INCLUDE})
set_source_files_properties(abi/registry/discover.c PROPERTIES COMPILE_DEFINITIONS
  OPI_PLUGIN_INSTALL_DIR="${CMAKE_INSTALL_FULL_LIBDIR}/onnx-pipe")
target_link_libraries(opi_core_usage INTERFACE
  opi_flags PkgConfig::JANSSON PkgConfig::PROTOBUF_C Threads::Threads ${CMAKE_DL_LIBS} m)
if(OPI_HAVE_HWLOC)
  target_link_libraries(opi_core_usage INTERFACE PkgConfig::HWLOC)
  target_compile_definitions(opi_core_usage INTERFACE OPI_HAVE_HWLOC=1)
endif()

add_library(opi_core OBJECT ${core_sources} ${abi_sources} ${generated_sources})
target_link_libraries(opi_core PRIVATE opi_core_usage)
if(OPIPE_SANITIZE)
  target_compile_definitions(opi_core PRIVATE XXH_NO_INLINE_HINTS=1) # inlined, it takes minutes to compile
endif()

add_library(opi_core_static STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:opi_core>)
target_link_libraries(opi_core_static PUBLIC opi_core_usage)
set_target_properties(opi_core_static PROPERTIES LINKER_LANGUAGE C)

# opi_test_core: the core with its internal names, for units: the archive, or one library that all of them share. The
# latter makes a build of units shorter by minutes; its objects have default visibility, what they are part of besides
# exports what its version script says.
if(OPIPE_SHARED_TEST_CORE)
  set_target_properties(opi_core PROPERTIES OPI_VISIBILITY default)
  add_library(opi_test_core SHARED EXCLUDE_FROM_ALL $<TARGET_OBJECTS:opi_core>)
  target_link_libraries(opi_test_core PUBLIC opi_core_usage)
  target_compile_options(opi_test_core INTERFACE -fPIC) # no copies of its variables in executables
  target_link_options(opi_test_core PRIVATE -Wl,-Bsymbolic ${OPI_NO_UNDEFINED})
  set_target_properties(opi_test_core PROPERTIES LINKER_LANGUAGE C
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
else()
  add_library(opi_test_core ALIAS opi_core_static)
endif()

add_library(onnxpipe SHARED $<TARGET_OBJECTS:opi_core>)
add_library(onnxpipe::onnxpipe ALIAS onnxpipe)
target_include_directories(onnxpipe INTERFACE
  $<BUILD_INTERFACE:${OPI_INCLUDE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
target_link_libraries(onnxpipe PRIVATE opi_core_usage)
set_target_properties(onnxpipe PROPERTIES
  LINKER_LANGUAGE C
  VERSION ${OPI_ABI_MAJOR}.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
  SOVERSION ${OPI_ABI_MAJOR})
opi_export_only(onnxpipe ${PROJECT_SOURCE_DIR}/abi/cmake/library.map)
# It stays when it was closed: threads of sessions, the table of handles and the host's late calls
# need its code.
target_link_options(onnxpipe PRIVATE -Wl,-z,nodelete)

# Ready clusters lie beside the plugins, in the build tree too: --cluster finds them by name.
set(ready_clusters)
if(OPIPE_STUDY)
  file(GLOB ready_clusters CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/partition/study/cluster/ready/*.json)
endif()
foreach(cluster IN LISTS ready_clusters)
  get_filename_component(name ${cluster} NAME)
  configure_file(${cluster} ${PROJECT_BINARY_DIR}/lib/onnx-pipe/clusters/${name} COPYONLY)
endforeach()
install(FILES ${ready_clusters} DESTINATION ${CMAKE_INSTALL_LIBDIR}/onnx-pipe/clusters)
