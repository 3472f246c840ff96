# SPDX-License-Identifier: Apache-2.0
# run_nodes: not a CUnit test but a runner with arguments; test_nodes.sh calls it.
if(OPI_HAVE_CUNIT)
  opi_test_executable(run_nodes_target ${CMAKE_CURRENT_LIST_DIR}/run_nodes.c)
  add_dependencies(${run_nodes_target} plugins)
  list(APPEND OPI_TEST_TARGETS ${run_nodes_target})
  list(APPEND OPI_GATE_PLAIN ${run_nodes_target})
endif()
