# SPDX-License-Identifier: Apache-2.0
#
# OPIPE_BUNDLE, for wheels: jansson and protobuf-c are linked in from their static archives, and no symbol of theirs is seen outside.
# Debian makes libjansson.a for executables, which reach stdin by its address; a library must not. Nothing of ours reads stdin through
# jansson: in a copy of the archive that name is a pointer of its own.
option(OPIPE_BUNDLE "link jansson and protobuf-c into the library, from their static archives" OFF)
if(OPIPE_BUNDLE)
  find_library(OPI_JANSSON_ARCHIVE libjansson.a HINTS ${JANSSON_LIBRARY_DIRS} REQUIRED)
  find_library(OPI_PROTOBUF_C_ARCHIVE libprotobuf-c.a HINTS ${PROTOBUF_C_LIBRARY_DIRS} REQUIRED)
  mark_as_advanced(OPI_JANSSON_ARCHIVE OPI_PROTOBUF_C_ARCHIVE)
  set(bundle ${PROJECT_BINARY_DIR}/bundle)
  file(WRITE ${bundle}/stdin.c "__attribute__((visibility(\"hidden\"))) void *opi_no_stdin;\n")
  file(REMOVE ${bundle}/libjansson.a)
  execute_process(COMMAND ${CMAKE_C_COMPILER} -fPIC -c ${bundle}/stdin.c -o ${bundle}/stdin.o COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_OBJCOPY} --redefine-sym stdin=opi_no_stdin ${OPI_JANSSON_ARCHIVE} ${bundle}/libjansson.a
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${CMAKE_AR} r ${bundle}/libjansson.a ${bundle}/stdin.o COMMAND_ERROR_IS_FATAL ANY ERROR_QUIET)
  set_target_properties(PkgConfig::JANSSON PROPERTIES INTERFACE_LINK_LIBRARIES ${bundle}/libjansson.a)
  set_target_properties(PkgConfig::PROTOBUF_C PROPERTIES INTERFACE_LINK_LIBRARIES ${OPI_PROTOBUF_C_ARCHIVE})
  add_link_options(-Wl,--exclude-libs,ALL)
endif()
