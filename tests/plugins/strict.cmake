# SPDX-License-Identifier: Apache-2.0
# The strict transport, a plugin of the tests: opipe-transport-strict.so below build/tests/plugins/.
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/transport-strict)
file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.c)
list(FILTER sources EXCLUDE REGEX "/test_[^/]*$")
opi_add_plugin(opipe-transport-strict ${OPI_TEST_DIR}/plugins opipe-transport-strict ${folder}
  ${sources})
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-transport-strict)
foreach(options "" rule=stream meet=all)
  string(REPLACE "=" "-" suffix "${options}")
  string(JOIN "-" name conformance/transport-strict ${suffix})
  add_test(NAME ${name} COMMAND conformance-transport
    ${OPI_TEST_DIR}/plugins/opipe-transport-strict.so ${options})
  set_tests_properties(${name} PROPERTIES TIMEOUT 120 LABELS unit
    ENVIRONMENT "${OPI_TEST_ENVIRONMENT}")
endforeach()
