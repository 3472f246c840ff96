# SPDX-License-Identifier: Apache-2.0
# The CUDA backend on doubles of the vendor's libraries (tests/plugins/backend-cuda/doubles): libraries of the vendor's
# names in build/tests/cuda, found through OPIPE_CUDA_PATH, and the plugin as it is, in build/tests/cuda/plugins. Where
# nvcc is missing it gets an image without kernels: the doubles have their own, made by the host's compiler.
set(OPI_CUDA_DOUBLES ${OPI_TEST_DIR}/cuda)
set(OPI_CUDA_ENVIRONMENT "${OPI_TEST_ENVIRONMENT};OPIPE_CUDA_PATH=${OPI_CUDA_DOUBLES}")
if(CMAKE_CXX_COMPILER AND TARGET opi_cuda_shim)
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-cuda/doubles)
  foreach(double cuda cublasLt)
    if(double STREQUAL "cuda")
      set(sources ${folder}/driver.c ${folder}/streams.c)
      set(version 1)
    else()
      set(sources ${folder}/products.c)
      set(version 13)
    endif()
    set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS -fvisibility=default)
    add_library(cuda-double-${double} SHARED ${sources})
    target_include_directories(cuda-double-${double} PRIVATE ${PROJECT_SOURCE_DIR} ${OPI_INCLUDE_DIR})
    target_link_libraries(cuda-double-${double} PRIVATE opi_flags Threads::Threads m)
    target_compile_options(cuda-double-${double} PRIVATE -O2 -ffp-contract=off)
    set_target_properties(cuda-double-${double} PROPERTIES OUTPUT_NAME ${double} SUFFIX .so.${version}
      LIBRARY_OUTPUT_DIRECTORY ${OPI_CUDA_DOUBLES} BUILD_RPATH "$ORIGIN" LINKER_LANGUAGE CXX)
    list(APPEND OPI_TEST_PLUGIN_TARGETS cuda-double-${double})
  endforeach()
  target_link_libraries(cuda-double-cuda PRIVATE opi_cuda_shim)
  target_link_libraries(cuda-double-cublasLt PRIVATE cuda-double-cuda)

  set(image)
  if(NOT OPI_CUDA_IMAGE)
    set(image ${folder}/image.c)
    set_source_files_properties(${image} PROPERTIES COMPILE_OPTIONS -I${PROJECT_SOURCE_DIR})
  endif()
  opi_add_plugin(cuda-on-doubles ${OPI_CUDA_DOUBLES}/plugins opipe-backend-cuda
    ${PROJECT_SOURCE_DIR}/plugins/backend-cuda ${PROJECT_SOURCE_DIR}/plugins/backend-cuda/plugin.c ${image}
    $<TARGET_OBJECTS:opipe-backend-cuda-objects>)
  target_link_libraries(cuda-on-doubles PRIVATE ${CMAKE_DL_LIBS})
  list(APPEND OPI_TEST_PLUGIN_TARGETS cuda-on-doubles)

  foreach(seed 1 2)
    foreach(options "" "device=1")
      string(REGEX REPLACE "[^a-z0-9]" "-" suffix "${options}")
      set(name conformance/backend-cuda-${seed}${suffix})
      add_test(NAME ${name} COMMAND conformance-backend
        ${OPI_CUDA_DOUBLES}/plugins/opipe-backend-cuda.so ${options})
      set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS unit
        ENVIRONMENT "${OPI_CUDA_ENVIRONMENT};OPIPE_CUDA_DOUBLE_SEED=${seed}")
    endforeach()
  endforeach()
endif()
foreach(target IN LISTS OPI_TEST_TARGETS)
  if(target MATCHES "^plugins-backend-cuda-test_")
    string(REGEX REPLACE "^plugins-backend-cuda-" "plugins/backend-cuda/" name ${target})
    if(TARGET cuda-on-doubles)
      target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
      if(target MATCHES "declarations" AND CUDAToolkit_FOUND)
        target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
      endif()
      set_tests_properties(${name} PROPERTIES ENVIRONMENT
        "${OPI_CUDA_ENVIRONMENT};OPIPE_PLUGIN_PATH=${OPI_CUDA_DOUBLES}/plugins:${OPI_PLUGIN_DIR}")
    endif()
  endif()
endforeach()
