# SPDX-License-Identifier: Apache-2.0
#
# Run as a script: makes OUT, C arrays of the document of partition/study/page/web (page.html with style
# and scripts in it, cut where the data stand), from the FOLDER of its sources.
cmake_minimum_required(VERSION 3.25)

function(marker text out)
  string(HEX "${text}" hex)
  set(${out} ${hex} PARENT_SCOPE)
endfunction()

file(READ ${FOLDER}/page.html page HEX)
file(READ ${FOLDER}/style.css style HEX)
set(scripts)
foreach(name IN ITEMS data view draw panels main)
  file(READ ${FOLDER}/${name}.js script HEX)
  string(APPEND scripts ${script})
endforeach()
marker("@STYLE@" at)
string(REPLACE ${at} "${style}" page "${page}")
marker("@SCRIPT@" at)
string(REPLACE ${at} "${scripts}" page "${page}")
marker("@DATA@" at)
string(FIND "${page}" ${at} begin)
string(LENGTH ${at} length)
math(EXPR end "${begin} + ${length}")
string(SUBSTRING "${page}" 0 ${begin} before)
string(SUBSTRING "${page}" ${end} -1 after)

set(text "/* Made by abi/cmake/page.cmake. */\n#include \"partition/study/page/document.h\"\n")
foreach(part IN ITEMS before after)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${${part}}")
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)"
    "\\1\n" bytes "${bytes}")
  string(APPEND text "const unsigned char opi_page_${part}[] = {${bytes}};\n"
    "const size_t opi_page_${part}_bytes = sizeof opi_page_${part};\n")
endforeach()
file(WRITE ${OUT} "${text}")
