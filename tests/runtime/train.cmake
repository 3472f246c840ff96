# SPDX-License-Identifier: Apache-2.0
# What the training tests share, as a library of theirs.
if(OPI_HAVE_CUNIT)
  add_library(opi_test_train STATIC EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_LIST_DIR}/train/cases.c
    ${CMAKE_CURRENT_LIST_DIR}/train/kit.c
    ${CMAKE_CURRENT_LIST_DIR}/train/memory.c
    ${CMAKE_CURRENT_LIST_DIR}/train/offload.c
    ${CMAKE_CURRENT_LIST_DIR}/train/outcomes.c
    ${CMAKE_CURRENT_LIST_DIR}/train/random.c
    ${CMAKE_CURRENT_LIST_DIR}/train/references.c
    $<$<BOOL:${OPIPE_STUDY}>:${CMAKE_CURRENT_LIST_DIR}/train/simulated.c>
    ${CMAKE_CURRENT_LIST_DIR}/train/uncut.c)
  target_link_libraries(opi_test_train PUBLIC opi_test_support)
  foreach(target IN LISTS OPI_TEST_TARGETS)
    if(target MATCHES "^runtime-train-|^partition-train-")
      target_link_libraries(${target} PRIVATE opi_test_train)
      add_dependencies(${target} plugins)
    endif()
  endforeach()
endif()
