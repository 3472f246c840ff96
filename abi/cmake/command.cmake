# SPDX-License-Identifier: Apache-2.0
#
# The command: a client of the public headers like any other program. It shares three sources with
# the library: cores, names that are suggested, sizes in messages.
file(GLOB command_sources CONFIGURE_DEPENDS abi/cli/*.c)
set(command_shared loader/base/cores.c loader/base/nearest.c loader/base/sizes.c)
set(OPI_HAVE_COMMAND OFF)
if(command_sources)
  set(OPI_HAVE_COMMAND ON)
  add_executable(onnx-pipe ${command_sources} ${command_shared})
  target_include_directories(onnx-pipe PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(onnx-pipe SYSTEM PRIVATE ${OPI_XXHASH_INCLUDE})
  target_link_libraries(onnx-pipe PRIVATE opi_flags onnxpipe PkgConfig::JANSSON Threads::Threads ${CMAKE_DL_LIBS} m)
  set_target_properties(onnx-pipe PROPERTIES
    BUILD_RPATH_USE_ORIGIN ON BUILD_WITH_INSTALL_RPATH OFF
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}:$ORIGIN/..") # the second: within the package of Python
endif()

# Completion and man pages: the command writes them from its own tables.
if(OPI_HAVE_COMMAND AND NOT CMAKE_CROSSCOMPILING)
  set(share ${PROJECT_BINARY_DIR}/share)
  set(pages inspect plan simulate profile tune run generate train launch follow plugins schedule)
  set(completions)
  foreach(shell bash zsh fish)
    add_custom_command(OUTPUT ${share}/completion/${shell}
      COMMAND ${CMAKE_COMMAND} -E make_directory ${share}/completion
      COMMAND onnx-pipe completion ${shell} > ${share}/completion/${shell}
      DEPENDS onnx-pipe VERBATIM)
    list(APPEND completions ${share}/completion/${shell})
  endforeach()
  add_custom_command(OUTPUT ${share}/man1/onnx-pipe.1
    COMMAND ${CMAKE_COMMAND} -E make_directory ${share}/man1
    COMMAND onnx-pipe manual > ${share}/man1/onnx-pipe.1
    DEPENDS onnx-pipe VERBATIM)
  set(manuals ${share}/man1/onnx-pipe.1)
  foreach(page ${pages})
    add_custom_command(OUTPUT ${share}/man1/onnx-pipe-${page}.1
      COMMAND ${CMAKE_COMMAND} -E make_directory ${share}/man1
      COMMAND onnx-pipe manual ${page} > ${share}/man1/onnx-pipe-${page}.1
      DEPENDS onnx-pipe VERBATIM)
    list(APPEND manuals ${share}/man1/onnx-pipe-${page}.1)
  endforeach()
  add_custom_target(command_pages ALL DEPENDS ${completions} ${manuals})
  install(FILES ${share}/completion/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME onnx-pipe)
  install(FILES ${share}/completion/zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _onnx-pipe)
  install(FILES ${share}/completion/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME onnx-pipe.fish)
  install(FILES ${manuals} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
