/* SPDX-License-Identifier: Apache-2.0 */
/* No plugin: a library that only depends on one, so that dlsym finds a descriptor that is not its
 * own. */
extern const char opipe_plugin_v1[];
__attribute__((visibility("default"))) const void *mock_dependent(void);
const void *mock_dependent(void) {
  return opipe_plugin_v1;
}
