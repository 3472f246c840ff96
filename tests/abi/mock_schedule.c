/* SPDX-License-Identifier: Apache-2.0 */
/* One plugin source, built many ways (tests/abi/mocks.cmake): MOCK_* each break one rule of the
 * border. Without any it is a good schedule plugin with id "mock".
 */
#include <opipe/helpers.h>
#include <opipe/schedule.h>
#include <stdlib.h>

#ifndef MOCK_ID
#define MOCK_ID "mock"
#endif

struct opipe_instance {
  const opipe_host *host;
};

static opipe_status list_options(opipe_instance *self, const opipe_schedule_option **out_options,
                                 uint32_t *out_count, opipe_error *err) {
  (void)self;
  (void)err;
  *out_options = NULL;
  *out_count = 0;
  return OPIPE_OK;
}

static opipe_status layout(opipe_instance *self, const opipe_layout_request *request,
                           opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  (void)request;
  (void)io_layout;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "the mock lays nothing out");
}

#ifndef MOCK_NULL_SLOT
static opipe_status plan_all(opipe_instance *self, const opipe_schedule_problem *problem,
                             opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  (void)self;
  (void)problem;
  (void)emit;
  (void)emit_ctx;
  return opipe_fail(err, OPIPE_E_UNSUPPORTED, "the mock plans nothing");
}
#else
#define plan_all NULL
#endif

/* A newer minor's table: one slot more than this host knows. */
typedef struct longer_table {
  opipe_schedule known;
  void (*newer)(void);
} longer_table;

__attribute__((unused)) static const longer_table table = {
#ifdef MOCK_SHORT_TABLE
    {16, 0, list_options, layout, plan_all},
#elif defined(MOCK_LONG_TABLE)
    {(uint32_t)OPIPE_END(longer_table, newer), 0, list_options, layout, plan_all},
#else
    {(uint32_t)OPIPE_END(opipe_schedule, plan), 0, list_options, layout, plan_all},
#endif
    NULL};

__attribute__((unused)) static opipe_status open_plugin(const opipe_host *host,
                                                        opipe_instance **out_self,
                                                        opipe_error *err) {
#ifdef MOCK_OPEN_FAILS
  (void)host;
  (void)out_self;
  return opipe_fail(err, OPIPE_E_DEVICE, "the mock's device is on fire");
#elif defined(MOCK_OPEN_SILENT)
  (void)host;
  (void)out_self;
  (void)err;
  return OPIPE_E_DEVICE;
#elif defined(MOCK_OPEN_PENDING)
  (void)host;
  (void)out_self;
  (void)err;
  return OPIPE_PENDING;
#else
  opipe_instance *self = (opipe_instance *)host->realloc(host->ctx, NULL, 0, sizeof *self, 16);
  if (self == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the mock");
  self->host = host;
  *out_self = self;
  return OPIPE_OK;
#endif
}

static void close_plugin(opipe_instance *self) {
  if (self != NULL)
    self->host->realloc(self->host->ctx, self, sizeof *self, 0, 16);
}

static const void *find_interface(opipe_instance *self, const char *id) {
  (void)self;
#ifdef MOCK_NO_TABLE
  (void)id;
  return NULL;
#else
  return strcmp(id, OPIPE_SCHEDULE_ID) == 0 ? &table.known : NULL;
#endif
}

#ifndef MOCK_MAGIC
#define MOCK_MAGIC OPIPE_PLUGIN_MAGIC
#endif
#ifndef MOCK_SIZE
#define MOCK_SIZE (uint32_t) OPIPE_END(opipe_plugin, get_interface)
#endif
#ifndef MOCK_MAJOR
#define MOCK_MAJOR OPIPE_ABI_MAJOR
#endif
#ifndef MOCK_MINOR
#define MOCK_MINOR OPIPE_ABI_MINOR
#endif
#ifndef MOCK_MINOR_MIN
#define MOCK_MINOR_MIN 0
#endif
#ifndef MOCK_KIND
#define MOCK_KIND OPIPE_KIND_SCHEDULE
#endif
/* A plugin's view of the structs, wrong in one number of one of them. */
#ifdef MOCK_LAYOUT
static const opipe_struct_row mock_rows[] = {{"opipe_error", 512, 0, 1}};
#else
#define mock_rows opipe_rows_of_OPIPE_KIND_SCHEDULE
#endif
#ifndef MOCK_BUILD
#define MOCK_BUILD OPIPE_BUILD_FLAGS
#endif
#ifdef MOCK_NULL_OPEN
#define open_plugin NULL
#endif
#ifdef MOCK_OTHER_SYMBOL
#define MOCK_SYMBOL some_other_symbol
#else
#define MOCK_SYMBOL opipe_plugin_v1
#endif

extern OPIPE_EXPORT const opipe_plugin MOCK_SYMBOL;
const opipe_plugin MOCK_SYMBOL = {MOCK_MAGIC,
                                  MOCK_SIZE,
                                  MOCK_MAJOR,
                                  MOCK_MINOR,
                                  MOCK_MINOR_MIN,
                                  MOCK_KIND,
                                  mock_rows,
                                  sizeof mock_rows / sizeof mock_rows[0],
                                  sizeof mock_rows[0],
                                  MOCK_BUILD,
                                  0,
                                  MOCK_ID,
                                  "1.0",
                                  "Apache-2.0",
                                  "a mock",
                                  open_plugin,
                                  close_plugin,
                                  find_interface};
