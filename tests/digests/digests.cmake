# SPDX-License-Identifier: Apache-2.0
# What the tests of this folder share, as a library of theirs.
if(OPI_HAVE_CUNIT)
  add_library(opi_test_digests STATIC EXCLUDE_FROM_ALL
    ${CMAKE_CURRENT_LIST_DIR}/table.c ${CMAKE_CURRENT_LIST_DIR}/forward.c
    ${CMAKE_CURRENT_LIST_DIR}/training.c)
  target_link_libraries(opi_test_digests PUBLIC opi_test_matrix opi_test_train)
  foreach(target IN LISTS OPI_TEST_TARGETS)
    if(target MATCHES "^digests-")
      target_link_libraries(${target} PRIVATE opi_test_digests)
      add_dependencies(${target} plugins)
    endif()
  endforeach()
endif()
