# SPDX-License-Identifier: Apache-2.0
#
# cmake --install: library, command, headers and declarations for cffi, pkg-config file, CMake package; below share/doc the
# guide, the examples, and sources to start from. (Plugins and conformance programs are installed
# where they are made.)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/onnxpipe)

install(TARGETS onnxpipe EXPORT onnxpipe-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(OPI_HAVE_COMMAND)
  install(TARGETS onnx-pipe RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
install(DIRECTORY ${OPI_INCLUDE_DIR}/opipe DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")

# The declarations for Python's cffi, made from the headers.
file(GLOB cdef_sources CONFIGURE_DEPENDS ${OPI_INCLUDE_DIR}/opipe/*.h ${PROJECT_SOURCE_DIR}/abi/cmake/cdef/*)
set(cdef_header ${OPI_GENERATED_DIR}/opipe/cdef.h)
add_custom_command(OUTPUT ${cdef_header}
  COMMAND ${CMAKE_COMMAND} -D CC=${CMAKE_C_COMPILER} -D INCLUDE=${OPI_INCLUDE_DIR} -D VERSION=${PROJECT_VERSION}
    -D OUT=${cdef_header} -P ${PROJECT_SOURCE_DIR}/abi/cmake/cdef/cdef.cmake
  DEPENDS ${cdef_sources} COMMENT "declarations for cffi" VERBATIM)
add_custom_target(cdef ALL DEPENDS ${cdef_header})
install(FILES ${cdef_header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/opipe)
include(abi/cmake/documents.cmake)

# Relative to the file itself, so that an installed tree can be moved.
file(RELATIVE_PATH OPI_PC_UP /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" OPI_PC_UP "${OPI_PC_UP}")
configure_file(abi/cmake/onnxpipe.pc.in onnxpipe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/onnxpipe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(EXPORT onnxpipe-targets NAMESPACE onnxpipe:: DESTINATION ${package_dir})
configure_package_config_file(abi/cmake/onnxpipe-config.cmake.in
  ${PROJECT_BINARY_DIR}/onnxpipe-config.cmake INSTALL_DESTINATION ${package_dir}
  PATH_VARS CMAKE_INSTALL_LIBDIR)
# find_package(onnxpipe 1.4) asks for that version of the ABI, or a later one of its major; the product's may be 0.x.
file(STRINGS abi/include/opipe/abi.h abi_minor REGEX "^#define OPIPE_ABI_MINOR ")
string(REGEX REPLACE ".* " "" abi_minor "${abi_minor}")
write_basic_package_version_file(${PROJECT_BINARY_DIR}/onnxpipe-config-version.cmake
  VERSION ${OPI_ABI_MAJOR}.${abi_minor} COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/onnxpipe-config.cmake
  ${PROJECT_BINARY_DIR}/onnxpipe-config-version.cmake DESTINATION ${package_dir})
install(FILES abi/cmake/plugin.map DESTINATION ${package_dir})
