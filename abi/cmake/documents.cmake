# SPDX-License-Identifier: Apache-2.0
#
# What is installed to read and to start from, below share/doc/onnxpipe:
#   guide/  examples/ (with a model and a text)  conformance/  plugins/ (of backend-cpu: pages only)
#   bench/records/ (those that which-tool.md cites)
# Links lead from page to page there too: the folders abi/ and tests/ are left out of them.
set(doc ${CMAKE_INSTALL_DOCDIR})
install(FILES LICENSE DESTINATION ${doc})
install(DIRECTORY abi/guide/ DESTINATION ${doc}/guide FILES_MATCHING PATTERN "*.md")
install(DIRECTORY tests/examples tests/data/demo DESTINATION ${doc} PATTERN "__pycache__" EXCLUDE)
install(DIRECTORY tests/conformance DESTINATION ${doc} FILES_MATCHING PATTERN "seeded" EXCLUDE
  PATTERN "*.[ch]" PATTERN "*.md")
install(FILES tests/data/text/ferry.txt DESTINATION ${doc}/demo)
file(READ abi/guide/which-tool.md page)
string(REGEX MATCHALL "tests/bench/records/[-a-z0-9]+[.]md" records "${page}")
list(REMOVE_DUPLICATES records)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS abi/guide/which-tool.md)
install(FILES ${records} DESTINATION ${doc}/bench/records)
install(DIRECTORY plugins DESTINATION ${doc} FILES_MATCHING PATTERN "*.md"
  PATTERN "*.c" PATTERN "*.h" PATTERN "ids.txt" PATTERN "*.cmake"
  REGEX "/backend-cpu/.*[.][ch]$" EXCLUDE)

install(CODE "set(OPI_DOC \"${doc}\")")
install(SCRIPT abi/cmake/links.cmake)
