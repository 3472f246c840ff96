# SPDX-License-Identifier: Apache-2.0
# The kernels: compiled by nvcc to one fat binary, which is linked in as bytes. No header and no library of the vendor's
# is needed for the rest, nor is any linked.
# nvcc takes minutes, so other builds than Release leave the plugin out and test it on doubles of the libraries.
find_program(OPI_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda)
get_filename_component(cuda_tools "${OPI_NVCC}" REALPATH)
get_filename_component(cuda_tools "${cuda_tools}" DIRECTORY)
find_program(OPI_FATBINARY fatbinary HINTS ${cuda_tools} ${CUDAToolkit_BIN_DIR} ENV CUDA_PATH PATH_SUFFIXES bin
  PATHS /usr/local/cuda)
set(OPIPE_CUDA_CHIPS "" CACHE STRING "chips to compile the CUDA kernels for, as 80;90; none: the usual ones")

# Those that are asked for, or the usual ones that this nvcc knows: data centres' since A100, and the desktop's newest.
function(opi_cuda_chips out)
  set(chips ${OPIPE_CUDA_CHIPS})
  if(NOT chips)
    execute_process(COMMAND ${OPI_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
    foreach(chip 80 90 100 120)
      if(known MATCHES "sm_${chip}[ \n]")
        list(APPEND chips ${chip})
      endif()
    endforeach()
  endif()
  set(${out} ${chips} PARENT_SCOPE)
endfunction()

set(cuda_kernels_preset OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(cuda_kernels_preset ON)
endif()
option(OPIPE_CUDA_KERNELS "compile the CUDA kernels with nvcc" ${cuda_kernels_preset})
target_link_libraries(${plugin_target} PRIVATE ${CMAKE_DL_LIBS})
set(cuda_chips)
if(OPIPE_WITH_CUDA AND OPIPE_CUDA_KERNELS AND OPI_NVCC)
  opi_cuda_chips(cuda_chips)
endif()
if(NOT OPIPE_WITH_CUDA)
  set(plugin_skip "OPIPE_WITH_CUDA is off")
elseif(NOT OPIPE_CUDA_KERNELS)
  set(plugin_skip "OPIPE_CUDA_KERNELS is off: only on its doubles, in the tests")
elseif(NOT OPI_NVCC OR NOT OPI_FATBINARY)
  set(plugin_skip "no nvcc")
elseif(NOT cuda_chips)
  set(plugin_skip "${OPI_NVCC} does not say which chips it knows")
else()
  set(cuda_image ${PROJECT_BINARY_DIR}/cuda/kernels.fatbin)
  file(GLOB_RECURSE cuda_parts CONFIGURE_DEPENDS ${folder}/kernels/*.cu ${folder}/kernels/*.cuh ${folder}/kernels/*.h)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  list(GET cuda_chips -1 cuda_newest)
  set(cuda_images)
  set(cuda_inputs)
  set(cuda_small)
  execute_process(COMMAND ${OPI_FATBINARY} --help OUTPUT_VARIABLE cuda_help)
  if(cuda_help MATCHES "--compress-mode") # since 12.9; a third less
    set(cuda_small --compress-mode=size)
  endif()
  foreach(chip IN LISTS cuda_chips)
    set(file ${PROJECT_BINARY_DIR}/cuda/sm_${chip}.cubin)
    set(ptx)
    set(ptx_argument)
    list(APPEND cuda_images --image3=kind=elf,sm=${chip},file=${file})
    if(chip EQUAL cuda_newest) # for chips that come after it
      set(ptx ${PROJECT_BINARY_DIR}/cuda/sm_${chip}.ptx)
      set(ptx_argument -D PTX=${ptx})
      list(APPEND cuda_images --image3=kind=ptx,sm=${chip},file=${ptx})
    endif()
    add_custom_command(OUTPUT ${file} ${ptx} DEPENDS ${cuda_parts} ${folder}/kernels/compile.cmake
      COMMAND ${CMAKE_COMMAND} -D NVCC=${OPI_NVCC} -D CHIP=${chip} -D OUT=${file} ${ptx_argument}
        -P ${folder}/kernels/compile.cmake
      COMMENT "nvcc: CUDA kernels for sm_${chip}" VERBATIM)
    list(APPEND cuda_inputs ${file} ${ptx})
  endforeach()
  add_custom_command(OUTPUT ${cuda_image} DEPENDS ${cuda_inputs}
    COMMAND ${OPI_FATBINARY} --create=${cuda_image} -64 --compress-all ${cuda_small} ${cuda_images}
    COMMENT "nvcc: CUDA kernels for all chips" VERBATIM)
  add_custom_command(OUTPUT ${PROJECT_BINARY_DIR}/cuda/image.c DEPENDS ${cuda_image} ${folder}/kernels/image.cmake
    COMMAND ${CMAKE_COMMAND} -D IMAGE=${cuda_image} -D OUT=${PROJECT_BINARY_DIR}/cuda/image.c -P ${folder}/kernels/image.cmake
    VERBATIM)
  set_source_files_properties(${PROJECT_BINARY_DIR}/cuda/image.c PROPERTIES COMPILE_OPTIONS -Wno-pedantic)
  target_sources(${plugin_objects} PRIVATE ${PROJECT_BINARY_DIR}/cuda/image.c)
  set(OPI_CUDA_IMAGE ON)
endif()
