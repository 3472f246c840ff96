# SPDX-License-Identifier: Apache-2.0
# What the tests of caps share, as a library of theirs.
if(OPI_HAVE_CUNIT)
  add_library(opi_test_caps STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/caps.c)
  target_link_libraries(opi_test_caps PUBLIC opi_test_support opi_test_train)
  foreach(target IN LISTS OPI_TEST_TARGETS)
    if(target MATCHES "^partition-test_caps")
      target_link_libraries(${target} PRIVATE opi_test_caps)
      add_dependencies(${target} plugins)
    endif()
  endforeach()
endif()
