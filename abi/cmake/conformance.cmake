# SPDX-License-Identifier: Apache-2.0
#
# The conformance programs: clients of the public headers alone, built and installed for who has a
# plugin but no compiler at hand. Their sources are installed too (install.cmake).
set(OPI_CONFORMANCE_DIR ${PROJECT_SOURCE_DIR}/tests/conformance)
add_custom_target(conformance)
foreach(kind backend schedule transport)
  set(program conformance-${kind})
  add_executable(${program}
    ${OPI_CONFORMANCE_DIR}/${kind}.c ${OPI_CONFORMANCE_DIR}/conformance.c)
  target_include_directories(${program} PRIVATE ${OPI_INCLUDE_DIR})
  target_compile_definitions(${program} PRIVATE _GNU_SOURCE)
  target_link_libraries(${program} PRIVATE opi_flags ${CMAKE_DL_LIBS} Threads::Threads m)
  set_target_properties(${program} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/libexec/onnx-pipe)
  add_dependencies(conformance ${program})
  install(TARGETS ${program} RUNTIME DESTINATION ${CMAKE_INSTALL_LIBEXECDIR}/onnx-pipe)
endforeach()
