# SPDX-License-Identifier: Apache-2.0
# What the tests of this folder share, as a library of theirs.
if(OPI_HAVE_CUNIT)
  add_library(opi_test_matrix STATIC EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_LIST_DIR}/folders.c ${CMAKE_CURRENT_LIST_DIR}/rows.c
    ${CMAKE_CURRENT_LIST_DIR}/runs.c ${CMAKE_CURRENT_LIST_DIR}/cases.c
    ${CMAKE_CURRENT_LIST_DIR}/copies.c ${CMAKE_CURRENT_LIST_DIR}/turns.c
    ${CMAKE_CURRENT_LIST_DIR}/shares.c
    ${CMAKE_CURRENT_LIST_DIR}/slices.c ${CMAKE_CURRENT_LIST_DIR}/halves.c)
  target_link_libraries(opi_test_matrix PUBLIC opi_test_support opi_test_train)
  foreach(target IN LISTS OPI_TEST_TARGETS)
    if(target MATCHES "^matrix-")
      target_link_libraries(${target} PRIVATE opi_test_matrix)
      add_dependencies(${target} plugins)
    endif()
  endforeach()
endif()
