# SPDX-License-Identifier: Apache-2.0
#
# Run by cmake --install: links of the pages below OPI_DOC, as these folders stand there.
#   abi/guide -> guide    tests/examples -> examples    tests/conformance -> conformance
if(NOT IS_ABSOLUTE "${OPI_DOC}")
  set(OPI_DOC "${CMAKE_INSTALL_PREFIX}/${OPI_DOC}")
endif()
set(root "$ENV{DESTDIR}${OPI_DOC}")
file(GLOB_RECURSE pages RELATIVE "${root}" "${root}/*.md")
foreach(page IN LISTS pages)
  file(READ "${root}/${page}" text)
  if(NOT page MATCHES "^plugins/") # two folders deep in the tree, one here
    string(REPLACE "](../../" "](../" text "${text}")
  endif()
  string(REGEX REPLACE "(\\]\\((\\.\\./)+)(abi|tests)/" "\\1" text "${text}")
  file(WRITE "${root}/${page}" "${text}")
endforeach()
