# SPDX-License-Identifier: Apache-2.0
if(NOT EXISTS ${folder}/plugin.c)
  set(plugin_skip "kernels alone")
endif()
