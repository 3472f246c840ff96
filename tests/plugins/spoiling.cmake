# SPDX-License-Identifier: Apache-2.0
# A backend whose bits go wrong once, a plugin of the tests: opipe-backend-spoiling.so below
# build/tests/plugins/.
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-spoiling)
opi_add_plugin(opipe-backend-spoiling ${OPI_TEST_DIR}/plugins opipe-backend-spoiling ${folder}
  ${folder}/spoiling.c)
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-backend-spoiling)
