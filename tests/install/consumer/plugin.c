/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin that opens and offers nothing: a host must find it and refuse it by name. */
#include <opipe/schedule.h>

struct opipe_instance {
  int unused;
};
static opipe_instance the_instance;

static opipe_status open_nothing(const opipe_host *host, opipe_instance **out_self,
                                 opipe_error *err) {
  (void)host;
  (void)err;
  *out_self = &the_instance;
  return OPIPE_OK;
}

static void close_nothing(opipe_instance *self) {
  (void)self;
}

static const void *no_interface(opipe_instance *self, const char *id) {
  (void)self;
  (void)id;
  return NULL;
}

extern OPIPE_EXPORT const opipe_plugin OPIPE_PLUGIN_SYMBOL;
const opipe_plugin OPIPE_PLUGIN_SYMBOL = {OPIPE_PLUGIN_HEAD(OPIPE_KIND_SCHEDULE, 0),
                                          "nothing",
                                          "1.0",
                                          "Apache-2.0",
                                          "offers no interface",
                                          open_nothing,
                                          close_nothing,
                                          no_interface};
