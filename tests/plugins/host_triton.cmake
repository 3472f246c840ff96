# SPDX-License-Identifier: Apache-2.0
# The backend looks the server's functions up by name: here in the test that stands in for it.
if(TARGET plugins-host-triton-test_double)
  set_target_properties(plugins-host-triton-test_double PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(plugins-host-triton-test_double opipe-host-triton)
endif()
