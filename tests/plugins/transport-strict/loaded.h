/* SPDX-License-Identifier: Apache-2.0 */
/* The counts of the transport-strict that a program has loaded as a plugin. */
#ifndef TESTS_STRICT_LOADED_H
#define TESTS_STRICT_LOADED_H

#include <dlfcn.h>

#include "tests/plugins/transport-strict/counts.h"
#include "tests/support/support.h"

/* NULL: it cannot be loaded. The file stays loaded, as the registry's opening of it does. */
static inline const strict_counts *strict_loaded(void) {
  const char *path = opi_test_build("tests/plugins/opipe-transport-strict.so");
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const opipe_plugin *plugin = library == NULL ? NULL : dlsym(library, "opipe_plugin_v1");
  return plugin == NULL ? NULL : plugin->get_interface(NULL, STRICT_COUNTS_ID);
}

#endif /* TESTS_STRICT_LOADED_H */
