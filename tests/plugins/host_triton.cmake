# SPDX-License-Identifier: Apache-2.0
# The backend looks the server's functions up by name: here in the tests that stand in for it.
foreach(target plugins-host-triton-test_double plugins-host-triton-test_generate)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES ENABLE_EXPORTS ON)
    add_dependencies(${target} opipe-host-triton)
  endif()
endforeach()
