# SPDX-License-Identifier: Apache-2.0
# What transports of one machine share, for its own tests: inside the plugins it is hidden.
foreach(target IN LISTS OPI_TEST_TARGETS)
  if(target MATCHES "^plugins-machine-")
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:opipe-machine-objects>)
  endif()
endforeach()
