# SPDX-License-Identifier: Apache-2.0
#
# cmake -D CC=... -D INCLUDE=... -D VERSION=... -D OUT=... -P cdef.cmake
# Writes opipe/cdef.h: the declarations of a host as Python's cffi takes them (ffi.cdef), without includes, macros,
# attributes and inline functions.
get_filename_component(folder ${CMAKE_CURRENT_LIST_FILE} DIRECTORY)
execute_process(COMMAND ${CC} -E -P -nostdinc -U__GNUC__ -std=c11 -I${folder} -I${INCLUDE} ${folder}/cdef.c
  OUTPUT_VARIABLE text ERROR_VARIABLE said RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${CC} cannot preprocess ${folder}/cdef.c:\n${said}")
endif()
string(REGEX REPLACE "\n[ ;]*\n" "\n" text "\n${text}") # of assertions that came to nothing
string(REGEX REPLACE "\n[ ;]*\n" "\n" text "${text}")
string(REGEX REPLACE "@define \"([A-Z_]+)\" *([0-9]+)" "#define \\1 \\2" text "${text}")
if(text MATCHES "static |_Static_assert|__attribute__|@define")
  message(FATAL_ERROR "declarations for cffi hold '${CMAKE_MATCH_0}': guard it with OPIPE_CDEF")
endif()
file(WRITE ${OUT} "/* SPDX-License-Identifier: Apache-2.0 */
/* Made from opipe/host.h of onnx-pipe ${VERSION}, for Python's cffi: ffi.cdef(open(...).read()). C and C++ include
 * opipe/host.h. */
${text}")
