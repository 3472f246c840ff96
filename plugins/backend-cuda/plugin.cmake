# SPDX-License-Identifier: Apache-2.0
# The kernels: compiled by nvcc to one fat binary, which is linked in as bytes. No header and no library of the vendor's
# is needed for the rest, nor is any linked.
# nvcc takes a minute or more, so other builds than Release leave the plugin out and test it on doubles of the libraries.
find_program(OPI_NVCC nvcc HINTS ${CUDAToolkit_BIN_DIR} ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda)
set(cuda_kernels_preset OFF)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(cuda_kernels_preset ON)
endif()
option(OPIPE_CUDA_KERNELS "compile the CUDA kernels with nvcc" ${cuda_kernels_preset})
target_link_libraries(${plugin_target} PRIVATE ${CMAKE_DL_LIBS})
if(NOT OPIPE_WITH_CUDA)
  set(plugin_skip "OPIPE_WITH_CUDA is off")
elseif(NOT OPIPE_CUDA_KERNELS)
  set(plugin_skip "OPIPE_CUDA_KERNELS is off: only on its doubles, in the tests")
elseif(NOT OPI_NVCC)
  set(plugin_skip "no nvcc")
else()
  set(cuda_image ${PROJECT_BINARY_DIR}/cuda/kernels.fatbin)
  set(cuda_kernels ${folder}/kernels/kernels.cu)
  file(GLOB_RECURSE cuda_parts CONFIGURE_DEPENDS ${folder}/kernels/*.cu ${folder}/kernels/*.cuh ${folder}/kernels/*.h)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/cuda)
  # What ptxas says of registers and spills is kept beside it for a test.
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda/compile.sh @ONLY CONTENT
"@OPI_NVCC@ -std=c++17 --fatbin -Xptxas -v -Xfatbin -compress-all \\
  -gencode=arch=compute_80,code=sm_80 -gencode=arch=compute_90,code=[sm_90,compute_90] \\
  -I @folder@/kernels -o @cuda_image@ @cuda_kernels@ 2> @PROJECT_BINARY_DIR@/cuda/ptxas.log && exit 0
cat @PROJECT_BINARY_DIR@/cuda/ptxas.log && exit 1
")
  add_custom_command(OUTPUT ${cuda_image} DEPENDS ${cuda_parts} ${PROJECT_BINARY_DIR}/cuda/compile.sh
    COMMAND sh ${PROJECT_BINARY_DIR}/cuda/compile.sh COMMENT "nvcc: CUDA kernels" VERBATIM)
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/cuda/image.c @ONLY CONTENT
"/* The bytes of @cuda_image@. */
#include \"image.h\"
__asm__(\".section .rodata\\n.balign 64\\n.globl cuda_kernels_image\\n.hidden cuda_kernels_image\\n\"
        \"cuda_kernels_image:\\n.incbin \\\"@cuda_image@\\\"\\n.previous\\n\");
")
  set_source_files_properties(${PROJECT_BINARY_DIR}/cuda/image.c PROPERTIES
    OBJECT_DEPENDS ${cuda_image} COMPILE_OPTIONS -Wno-pedantic)
  target_sources(${plugin_objects} PRIVATE ${PROJECT_BINARY_DIR}/cuda/image.c)
  set(OPI_CUDA_IMAGE ON)
endif()
