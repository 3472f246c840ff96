# SPDX-License-Identifier: Apache-2.0
#
# The package onnxpipe of Python: its sources and the declarations for cffi, in build/python/onnxpipe. There it finds the library of
# the build tree; a wheel (pyproject.toml, ./dev wheel) holds the library too.
option(OPIPE_PYTHON_PACKAGE "install the package of Python as a wheel holds it, and nothing else" OFF)
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
if(OPIPE_PYTHON_PACKAGE)
  install(FILES ${python_files} DESTINATION .)
endif()
