# SPDX-License-Identifier: Apache-2.0
# What the bench "papers" asks of planners and simulator, as a command of its own.
add_executable(papers_engine EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/papers/engine.c
  ${CMAKE_CURRENT_LIST_DIR}/papers/models.c ${CMAKE_CURRENT_LIST_DIR}/papers/plans.c
  ${CMAKE_CURRENT_LIST_DIR}/papers/slices.c ${CMAKE_CURRENT_LIST_DIR}/papers/auto.c)
set_target_properties(papers_engine PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${OPI_TEST_DIR}/bench)
target_include_directories(papers_engine PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(papers_engine PRIVATE opi_core_static)
add_dependencies(papers_engine plugins)
list(APPEND OPI_BENCH_TARGETS papers_engine)
list(APPEND OPI_GATE_PLAIN papers_engine)
