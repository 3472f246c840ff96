# SPDX-License-Identifier: Apache-2.0
# NCCL and the driver are opened at run time: no header and no library of the vendor's is needed.
include(${PROJECT_SOURCE_DIR}/plugins/machine/machine.cmake)
target_link_libraries(${plugin_target} PRIVATE ${CMAKE_DL_LIBS})
