# SPDX-License-Identifier: Apache-2.0
# Targets that run plugins have them linked in; those that train share the training tests' kit, the one
# that has plugins with faults reads a plugin's file too.
if(OPIPE_BUILD_FUZZERS)
  foreach(target fuzz_plan fuzz_plugin fuzz_schedule fuzz_training)
    target_link_libraries(${target} PRIVATE opi_static_plugins)
  endforeach()
  target_link_libraries(fuzz_training PRIVATE opi_test_train)
  target_sources(fuzz_plan PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/plan_mutate.c
    ${CMAKE_CURRENT_LIST_DIR}/plan_run.c
    ${CMAKE_CURRENT_LIST_DIR}/plan_seeds.c)
  target_sources(fuzz_trace PRIVATE ${PROJECT_SOURCE_DIR}/abi/cli/generate_asks.c)
  target_link_libraries(fuzz_plan PRIVATE opi_test_support)
  target_link_libraries(fuzz_plugin PRIVATE opi_test_support)
  add_dependencies(fuzz_plugin opipe-schedule-gpipe)
endif()
