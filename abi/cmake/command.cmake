# SPDX-License-Identifier: Apache-2.0
#
# The command: a client of the public headers like any other program. It shares one source with the
# library, which suggests names too.
file(GLOB command_sources CONFIGURE_DEPENDS abi/cli/*.c)
set(command_shared loader/base/nearest.c)
set(OPI_HAVE_COMMAND OFF)
if(command_sources)
  set(OPI_HAVE_COMMAND ON)
  add_executable(onnx-pipe ${command_sources} ${command_shared})
  target_include_directories(onnx-pipe PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(onnx-pipe SYSTEM PRIVATE ${OPI_XXHASH_INCLUDE})
  target_link_libraries(onnx-pipe PRIVATE opi_flags onnxpipe PkgConfig::JANSSON Threads::Threads ${CMAKE_DL_LIBS} m)
  set_target_properties(onnx-pipe PROPERTIES
    BUILD_RPATH_USE_ORIGIN ON BUILD_WITH_INSTALL_RPATH OFF
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()
