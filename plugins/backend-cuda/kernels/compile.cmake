# SPDX-License-Identifier: Apache-2.0
# Compiles all kernels for one chip. What is there already stays as it is where it is of the same sources, compiler and flags.
#
#   cmake -D NVCC=nvcc -D CHIP=90 -D OUT=FILE [-D PTX=FILE] -P compile.cmake
#
# PTX: on the way to OUT, what newer chips' drivers can compile. Beside OUT: OUT.key, what went into it; OUT.log, what ptxas
# says of registers and spills.
set(folder ${CMAKE_CURRENT_LIST_DIR})
set(flags -std=c++17)
file(GLOB_RECURSE parts RELATIVE ${folder} ${folder}/*.cu ${folder}/*.cuh ${folder}/*.h)
list(SORT parts)
execute_process(COMMAND ${NVCC} --version OUTPUT_VARIABLE key COMMAND_ERROR_IS_FATAL ANY)
string(APPEND key "${flags} sm_${CHIP} ${PTX}\n")
foreach(part IN LISTS parts)
  file(SHA256 ${folder}/${part} hash)
  string(APPEND key "${hash} ${part}\n")
endforeach()
if(EXISTS ${OUT} AND EXISTS ${OUT}.key AND (NOT PTX OR EXISTS ${PTX}))
  file(READ ${OUT}.key kept)
  if(kept STREQUAL key)
    return()
  endif()
endif()
file(REMOVE ${OUT} ${OUT}.key)

function(compile)
  execute_process(COMMAND ${NVCC} ${ARGN} RESULT_VARIABLE failed ERROR_FILE ${OUT}.log)
  if(failed)
    file(REMOVE ${OUT})
    file(READ ${OUT}.log said)
    message(FATAL_ERROR "${said}")
  endif()
endfunction()

set(from ${folder}/kernels.cu)
if(PTX)
  compile(${flags} -I ${folder} -ptx -arch=compute_${CHIP} -o ${PTX} ${from})
  set(from ${PTX})
endif()
compile(${flags} -I ${folder} -cubin -arch=sm_${CHIP} -Xptxas -v -o ${OUT} ${from})
file(WRITE ${OUT}.key "${key}")
