# SPDX-License-Identifier: Apache-2.0
#
# Compiler flags as interface targets: opi_flags for everything of ours, nothing global.
# Generated code (protobuf-c) is compiled without warnings.
include(CheckLinkerFlag)

add_library(opi_flags INTERFACE)
target_compile_definitions(opi_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:_GNU_SOURCE>)
target_compile_options(opi_flags INTERFACE
  -fvisibility=$<IF:$<BOOL:$<TARGET_PROPERTY:OPI_VISIBILITY>>,$<TARGET_PROPERTY:OPI_VISIBILITY>,hidden>
  -fno-common
  -Wall -Wextra -Wno-missing-field-initializers -Wpedantic -Wshadow -Wconversion -Wvla -Wundef
  $<$<COMPILE_LANGUAGE:C>:-Wstrict-prototypes -Wmissing-prototypes>
  $<$<BOOL:${OPIPE_WERROR}>:-Werror>
  # A function that starts elsewhere in its cache line is up to 3 % faster or slower: a change in one
  # must not move all the others.
  "$<$<CONFIG:Release>:-O3;-falign-functions=64>")

# Sanitizers change every target and also the compiler's idea of what may be uninitialised.
set(OPI_NO_UNDEFINED -Wl,-z,defs)
if(OPIPE_SANITIZE)
  target_compile_options(opi_flags INTERFACE
    -fsanitize=${OPIPE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    # Following variables through instrumented code takes gcc minutes for a kernel source.
    $<$<C_COMPILER_ID:GNU>:-fno-var-tracking>
    -Wno-maybe-uninitialized)
  target_link_options(opi_flags INTERFACE -fsanitize=${OPIPE_SANITIZE})
  if(CMAKE_C_COMPILER_ID MATCHES Clang)
    # clang leaves the sanitizer's own symbols to the executable.
    set(OPI_NO_UNDEFINED "")
    target_compile_options(opi_flags INTERFACE -Wno-unknown-warning-option)
  endif()
endif()

# Gives `target` a version script, so that exactly the names in it are exported.
function(opi_export_only target script)
  target_link_options(${target} PRIVATE -Wl,--version-script=${script} ${OPI_NO_UNDEFINED})
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${script})
endfunction()

# Kernel sources say in their name which instructions they need; the caller checks the machine.
function(opi_kernel_flags)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx(2|512)\\.c$" AND OPIPE_SANITIZE)
      # Most of the time of sanitized tests is theirs, two thirds more of it at -Og.
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -O1)
    endif()
    if(source MATCHES "_portable\\.c$" AND OPIPE_SANITIZE)
      # As fast as -O1 makes it, and compiled in a tenth of the time.
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Og)
    elseif(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
      continue()
    elseif(source MATCHES "_avx2\\.c$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mfma -mf16c)
    elseif(source MATCHES "_avx2_vnni\\.c$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -mavx2 -mavxvnni -mfma -mf16c)
    elseif(source MATCHES "_avx512_vnni\\.c$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
        -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c)
    elseif(source MATCHES "_avx512_bf16\\.c$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
        -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16 -mfma -mf16c)
    elseif(source MATCHES "_avx512_amx\\.c$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
        -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mamx-tile -mamx-bf16 -mamx-int8 -mfma -mf16c)
    elseif(source MATCHES "_avx512\\.c$")
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
        -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
    endif()
  endforeach()
endfunction()
