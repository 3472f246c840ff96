# SPDX-License-Identifier: Apache-2.0
#
# mock_schedule.c built many ways, each breaking one rule; below build/tests/abi/mocks/.
if(OPI_HAVE_CUNIT)
  set(OPI_MOCK_DIR ${OPI_TEST_DIR}/abi/mocks)
  set(OPI_MOCKS)
  function(opi_mock name)
    add_library(mock-${name} MODULE EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/abi/mock_schedule.c)
    set_target_properties(mock-${name} PROPERTIES
      PREFIX "" OUTPUT_NAME opipe-schedule-${name} C_VISIBILITY_PRESET hidden
      LIBRARY_OUTPUT_DIRECTORY ${OPI_MOCK_DIR}/${name})
    target_include_directories(mock-${name} PRIVATE ${PROJECT_SOURCE_DIR}/abi/include)
    target_compile_definitions(mock-${name} PRIVATE ${ARGN})
    target_link_libraries(mock-${name} PRIVATE opi_flags)
    set(OPI_MOCKS ${OPI_MOCKS} mock-${name} PARENT_SCOPE)
  endfunction()

  opi_mock(good)
  opi_mock(twin)
  opi_mock(magic MOCK_MAGIC=1)
  opi_mock(size MOCK_SIZE=40)
  opi_mock(major MOCK_MAJOR=2)
  opi_mock(newer MOCK_MINOR=7 MOCK_LONG_TABLE)
  opi_mock(needs-newer MOCK_MINOR=7 MOCK_MINOR_MIN=7)
  opi_mock(kind MOCK_KIND=9)
  opi_mock(layout MOCK_LAYOUT=1)
  opi_mock(build MOCK_BUILD=4u)
  opi_mock(id "MOCK_ID=\"no spaces please\"")
  opi_mock(null-id MOCK_ID=0)
  opi_mock(null-open MOCK_NULL_OPEN)
  opi_mock(null-slot MOCK_NULL_SLOT)
  opi_mock(no-table MOCK_NO_TABLE)
  opi_mock(short-table MOCK_SHORT_TABLE)
  opi_mock(open-fails MOCK_OPEN_FAILS)
  opi_mock(open-silent MOCK_OPEN_SILENT)
  opi_mock(open-pending MOCK_OPEN_PENDING)
  opi_mock(no-symbol MOCK_OTHER_SYMBOL)

  # A library that depends on the good one.
  add_library(mock-base SHARED EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/abi/mock_schedule.c)
  set_target_properties(mock-base PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${OPI_MOCK_DIR}/base
    C_VISIBILITY_PRESET hidden)
  target_include_directories(mock-base PRIVATE ${PROJECT_SOURCE_DIR}/abi/include)
  target_link_libraries(mock-base PRIVATE opi_flags)
  add_library(mock-dependent MODULE EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/abi/mock_dependent.c)
  set_target_properties(mock-dependent PROPERTIES PREFIX "" OUTPUT_NAME opipe-schedule-dependent
    LIBRARY_OUTPUT_DIRECTORY ${OPI_MOCK_DIR}/dependent)
  target_link_libraries(mock-dependent PRIVATE mock-base opi_flags)
  list(APPEND OPI_MOCKS mock-dependent)

  # The same source under AddressSanitizer: must be refused before dlopen would end the process.
  if(OPIPE_SANITIZE STREQUAL "")
    opi_mock(asan)
    target_compile_options(mock-asan PRIVATE -fsanitize=address)
    target_link_options(mock-asan PRIVATE -fsanitize=address)
  endif()

  # The same source built from the frozen headers of each released minor: old plugins on today's host.
  file(GLOB released CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/abi/v*/opipe)
  foreach(folder IN LISTS released)
    get_filename_component(minor ${folder} DIRECTORY)
    get_filename_component(minor ${minor} NAME)
    opi_mock(${minor})
    set_target_properties(mock-${minor} PROPERTIES INCLUDE_DIRECTORIES ${folder}/..)
  endforeach()

  list(APPEND OPI_TEST_PLUGIN_TARGETS ${OPI_MOCKS})
  if(TARGET abi-test_registry)
    add_dependencies(abi-test_registry ${OPI_MOCKS})
  endif()
endif()
