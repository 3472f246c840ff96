# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels as host functions (tests/plugins/backend-cuda/kernels/shim), and the tests that run them.
set(OPI_CUDA_KERNELS ${PROJECT_SOURCE_DIR}/plugins/backend-cuda/kernels)
set(OPI_CUDA_SHIM ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-cuda/kernels/shim)
if(CMAKE_CXX_COMPILER)
  file(GLOB cuda_parts CONFIGURE_DEPENDS ${OPI_CUDA_KERNELS}/parts/*.cu)
  set(language -xc++ -include ${OPI_CUDA_SHIM}/shim.hpp)
  if(OPIPE_SANITIZE MATCHES "address") # what these look for is found as it is touched
    list(APPEND language -fno-sanitize=null,object-size,pointer-overflow)
  elseif(OPIPE_SANITIZE MATCHES "thread") # fibers of one thread: clocks for each would take minutes
    list(APPEND language -fno-sanitize=thread)
  endif()
  set_source_files_properties(${cuda_parts} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "${language}")
  add_library(opi_cuda_shim STATIC EXCLUDE_FROM_ALL
    ${cuda_parts} ${OPI_CUDA_SHIM}/shim.cpp
    ${OPI_CUDA_SHIM}/product.cpp ${OPI_CUDA_SHIM}/rows.cpp ${OPI_CUDA_SHIM}/faulty.cpp)
  target_include_directories(opi_cuda_shim
    PUBLIC ${OPI_CUDA_KERNELS} PRIVATE ${OPI_CUDA_SHIM} ${OPI_INCLUDE_DIR})
  target_link_libraries(opi_cuda_shim PRIVATE opi_flags PUBLIC Threads::Threads m)
  # Sums and products are joined only where the sources say so. A -O0 build would take minutes to run; at -O2, sanitized at
  # -O1, the kernels take longer to compile than to run.
  set(optimized -O1 -g1)
  if(OPIPE_SANITIZE)
    set(optimized -Og)
  endif()
  target_compile_options(opi_cuda_shim PRIVATE ${optimized} -ffp-contract=off -Wno-conversion -Wno-float-conversion -Wno-maybe-uninitialized)
  set(machine -O2) # what runs the kernels: in every switch and product of theirs, and without memory of others
  if(OPIPE_SANITIZE)
    list(APPEND machine -fno-sanitize=${OPIPE_SANITIZE})
  endif()
  if(OPIPE_SANITIZE MATCHES "address")
    list(APPEND machine -DSHIM_ADDRESS)
  endif()
  set_property(SOURCE ${OPI_CUDA_SHIM}/shim.cpp ${OPI_CUDA_SHIM}/product.cpp PROPERTY COMPILE_OPTIONS ${machine})
  file(GLOB cuda_plans CONFIGURE_DEPENDS ${OPI_CUDA_KERNELS}/plan*.c)
  file(GLOB cuda_kit CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-cuda/kernels/kit*.c)
  add_library(opi_cuda_kit STATIC EXCLUDE_FROM_ALL ${cuda_plans} ${cuda_kit})
  target_include_directories(opi_cuda_kit PUBLIC ${OPI_CUDA_KERNELS})
  target_link_libraries(opi_cuda_kit PRIVATE opi_flags PUBLIC opi_test_support opi_cuda_shim ${CMAKE_DL_LIBS})
endif()
foreach(target IN LISTS OPI_TEST_TARGETS)
  if(target MATCHES "^plugins-backend-cuda-kernels-")
    if(CMAKE_CXX_COMPILER)
      target_link_libraries(${target} PRIVATE opi_cuda_kit opi_cuda_shim opi_test_kernels)
      set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
      if(NOT OPIPE_SANITIZE) # they go to machines whose C++ library is another one
        target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
      endif()
    else()
      set_target_properties(${target} PROPERTIES EXCLUDE_FROM_ALL ON)
      list(REMOVE_ITEM OPI_TEST_TARGETS ${target})
    endif()
  endif()
endforeach()
