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
  opi_mock(reserved-id "MOCK_ID=\"gems\"")
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

  # From the frozen headers of each released minor: the same source (old plugins on today's registry);
  # a host, a backend and a schedule (all of them on today's library); the conformance programs (an old
  # host's view of today's plugins).
  set(OPI_OLD_TARGETS)
  file(GLOB released CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/abi/v*/opipe)
  foreach(folder IN LISTS released)
    get_filename_component(folder ${folder} DIRECTORY)
    get_filename_component(minor ${folder} NAME)
    opi_mock(${minor})
    set_target_properties(mock-${minor} PROPERTIES INCLUDE_DIRECTORIES ${folder})
    set(old_dir ${OPI_TEST_DIR}/abi/${minor})
    foreach(kind backend order transport)
      add_library(mock-${kind}-${minor} MODULE EXCLUDE_FROM_ALL
        ${CMAKE_CURRENT_SOURCE_DIR}/abi/mock_${kind}.c)
      set_target_properties(mock-${kind}-${minor} PROPERTIES PREFIX "" C_VISIBILITY_PRESET hidden
        LIBRARY_OUTPUT_DIRECTORY ${old_dir})
      list(APPEND OPI_OLD_TARGETS mock-${kind}-${minor})
    endforeach()
    set_target_properties(mock-backend-${minor} PROPERTIES OUTPUT_NAME opipe-backend-mock)
    set_target_properties(mock-order-${minor} PROPERTIES OUTPUT_NAME opipe-schedule-mock-order)
    set_target_properties(mock-transport-${minor} PROPERTIES OUTPUT_NAME opipe-transport-mock-grouped)
    target_compile_definitions(mock-transport-${minor} PRIVATE _GNU_SOURCE)
    add_executable(old-host-${minor} EXCLUDE_FROM_ALL ${CMAKE_CURRENT_SOURCE_DIR}/abi/old_host.c)
    list(APPEND OPI_OLD_TARGETS old-host-${minor})
    foreach(kind backend schedule transport)
      add_executable(old-${kind}-${minor} EXCLUDE_FROM_ALL
        ${CMAKE_CURRENT_SOURCE_DIR}/conformance/${kind}.c
        ${CMAKE_CURRENT_SOURCE_DIR}/conformance/conformance.c)
      target_compile_definitions(old-${kind}-${minor} PRIVATE _GNU_SOURCE)
      list(APPEND OPI_OLD_TARGETS old-${kind}-${minor})
    endforeach()
    foreach(target IN LISTS OPI_OLD_TARGETS)
      if(target MATCHES "-${minor}$")
        set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${old_dir})
        target_include_directories(${target} PRIVATE ${folder})
        target_link_libraries(${target} PRIVATE opi_flags ${CMAKE_DL_LIBS} Threads::Threads m)
      endif()
    endforeach()
    add_test(NAME abi/host-${minor} COMMAND old-host-${minor} $<TARGET_FILE:onnxpipe>
      ${PROJECT_SOURCE_DIR}/tests/data/gpt_8block/model.onnx
      $<TARGET_FILE:mock-backend-${minor}> $<TARGET_FILE:mock-order-${minor}>
      $<TARGET_FILE:mock-transport-${minor}>)
    add_test(NAME abi/backend-${minor} COMMAND old-backend-${minor} ${OPI_PLUGIN_DIR}/opipe-backend-cpu.so)
    add_test(NAME abi/schedule-${minor} COMMAND old-schedule-${minor} ${OPI_PLUGIN_DIR}/opipe-schedule-1f1b.so)
    add_test(NAME abi/transport-${minor} COMMAND old-transport-${minor} ${OPI_PLUGIN_DIR}/opipe-transport-local.so)
    foreach(test host backend schedule transport)
      set_tests_properties(abi/${test}-${minor} PROPERTIES TIMEOUT 120 LABELS unit
        ENVIRONMENT "${OPI_TEST_ENVIRONMENT}")
    endforeach()
  endforeach()
  list(APPEND OPI_TEST_TARGETS ${OPI_OLD_TARGETS})
  list(APPEND OPI_GATE_UNIT ${OPI_OLD_TARGETS})

  list(APPEND OPI_TEST_PLUGIN_TARGETS ${OPI_MOCKS})
  if(TARGET abi-test_registry)
    add_dependencies(abi-test_registry ${OPI_MOCKS})
  endif()
endif()
