# SPDX-License-Identifier: Apache-2.0
# Targets that run plugins have them linked in; the one that trains shares the training tests' kit.
if(OPIPE_BUILD_FUZZERS)
  foreach(target fuzz_schedule fuzz_training)
    target_link_libraries(${target} PRIVATE opi_static_plugins)
  endforeach()
  target_link_libraries(fuzz_training PRIVATE opi_test_train)
endif()
