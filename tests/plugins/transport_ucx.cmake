# SPDX-License-Identifier: Apache-2.0
# transport-ucx's own functions, for the tests of notes: inside the plugin they are hidden.
foreach(target IN LISTS OPI_TEST_TARGETS)
  if(target STREQUAL "plugins-transport-ucx-test_notes")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:opipe-transport-ucx-objects>
      $<TARGET_OBJECTS:opipe-transport-shm-objects> $<TARGET_OBJECTS:opipe-machine-objects>)
    target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
  endif()
endforeach()
