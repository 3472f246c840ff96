# SPDX-License-Identifier: Apache-2.0
#
# The package onnxpipe of Python: its sources and the declarations for cffi, in build/python/onnxpipe. There it finds the library of
# the build tree. Component "python" of an installation is what a wheel holds (pyproject.toml, ./dev wheel), configured with
# CMAKE_INSTALL_LIBDIR=. and CMAKE_PLATFORM_NO_VERSIONED_SONAME=ON: onnxpipe/ with library, plugins, command and the adapter for
# ONNX Runtime inside.
set(OPI_PYTHON_DIR ${PROJECT_BINARY_DIR}/python)
file(GLOB python_sources CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}/abi/python/onnxpipe
  ${PROJECT_SOURCE_DIR}/abi/python/onnxpipe/*.py ${PROJECT_SOURCE_DIR}/abi/python/onnxpipe/py.typed)
set(python_files ${OPI_PYTHON_DIR}/onnxpipe/cdef.h)
add_custom_command(OUTPUT ${OPI_PYTHON_DIR}/onnxpipe/cdef.h
  COMMAND ${CMAKE_COMMAND} -E copy ${cdef_header} ${OPI_PYTHON_DIR}/onnxpipe/cdef.h
  DEPENDS ${cdef_header} VERBATIM)
set(python_declare ${PROJECT_SOURCE_DIR}/abi/python/declare.py)
execute_process(COMMAND ${OPI_PYTHON} -c "import cffi" RESULT_VARIABLE no_cffi OUTPUT_QUIET ERROR_QUIET)
if(no_cffi EQUAL 0) # else the package reads cdef.h itself, which takes longer
  add_custom_command(OUTPUT ${OPI_PYTHON_DIR}/onnxpipe/_declared.py
    COMMAND ${OPI_PYTHON} -B ${python_declare} ${cdef_header} ${OPI_PYTHON_DIR}/onnxpipe/_declared.py
    DEPENDS ${cdef_header} ${python_declare} ${OPI_PYTHON_DIR}/onnxpipe/cdef.h VERBATIM)
  list(APPEND python_files ${OPI_PYTHON_DIR}/onnxpipe/_declared.py)
else()
  file(REMOVE ${OPI_PYTHON_DIR}/onnxpipe/_declared.py)
endif()
foreach(source IN LISTS python_sources)
  add_custom_command(OUTPUT ${OPI_PYTHON_DIR}/onnxpipe/${source}
    COMMAND ${CMAKE_COMMAND} -E copy ${PROJECT_SOURCE_DIR}/abi/python/onnxpipe/${source} ${OPI_PYTHON_DIR}/onnxpipe/${source}
    DEPENDS ${PROJECT_SOURCE_DIR}/abi/python/onnxpipe/${source} VERBATIM)
  list(APPEND python_files ${OPI_PYTHON_DIR}/onnxpipe/${source})
endforeach()
add_custom_target(python_package ALL DEPENDS ${python_files} COMMENT "package of Python")

set(wheel COMPONENT python EXCLUDE_FROM_ALL)
install(FILES ${python_files} DESTINATION onnxpipe ${wheel})
install(TARGETS onnxpipe opipe-host-onnxruntime LIBRARY DESTINATION onnxpipe ${wheel})
install(TARGETS ${OPI_PLUGIN_TARGETS} LIBRARY DESTINATION onnxpipe/onnx-pipe ${wheel})
install(FILES ${ready_clusters} DESTINATION onnxpipe/onnx-pipe/clusters ${wheel})
if(OPI_HAVE_COMMAND)
  install(TARGETS onnx-pipe RUNTIME DESTINATION onnxpipe/bin ${wheel})
endif()
