# SPDX-License-Identifier: Apache-2.0
# A backend that lacks something or goes wrong, as the environment asks, for tests of the command:
# opipe-backend-impaired.so below build/tests/plugins/.
set(folder ${CMAKE_CURRENT_SOURCE_DIR}/plugins/backend-impaired)
opi_add_plugin(opipe-backend-impaired ${OPI_TEST_DIR}/plugins opipe-backend-impaired ${folder}
  ${folder}/impaired.c)
list(APPEND OPI_TEST_PLUGIN_TARGETS opipe-backend-impaired)
