# SPDX-License-Identifier: Apache-2.0
include(${PROJECT_SOURCE_DIR}/plugins/machine/machine.cmake)
