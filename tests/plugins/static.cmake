# SPDX-License-Identifier: Apache-2.0
# Plugins linked into a program (OPIPE_STATIC_PLUGINS) instead of opened from files.
if(OPIPE_STATIC_PLUGINS AND OPI_HAVE_CUNIT)
  set(file ${CMAKE_CURRENT_SOURCE_DIR}/plugins/static_plugins.c)
  opi_test_executable(target ${file})
  target_link_libraries(${target} PRIVATE opi_static_plugins)
  add_test(NAME plugins/static_plugins COMMAND ${target} WORKING_DIRECTORY ${OPI_TEST_DIR})
  opi_test_limits(plugins/static_plugins ${file} unit)
  set_property(TEST plugins/static_plugins APPEND PROPERTY LABELS plain)
  set_tests_properties(plugins/static_plugins PROPERTIES ENVIRONMENT "${OPI_TEST_ENVIRONMENT}")
  list(APPEND OPI_TEST_TARGETS ${target})
  list(APPEND OPI_GATE_PLAIN ${target})
endif()
