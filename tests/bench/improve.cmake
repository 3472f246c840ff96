# SPDX-License-Identifier: Apache-2.0
# What the bench "improve" asks of schedules and search, as a command of its own.
add_executable(improve_grid EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/improve/grid.c)
set_target_properties(improve_grid PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${OPI_TEST_DIR}/bench)
target_include_directories(improve_grid PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(improve_grid PRIVATE opi_core_static)
add_dependencies(improve_grid plugins)
list(APPEND OPI_BENCH_TARGETS improve_grid)
