/* SPDX-License-Identifier: Apache-2.0 */
/* Under both kits of the schedules' tests (kit.h, lab.h): built plugins, opened once each under a
 * host that counts its memory and can refuse it, and the order that one of them answered.
 */
#ifndef TESTS_PLUGINS_SCHEDULES_ASKED_H
#define TESTS_PLUGINS_SCHEDULES_ASKED_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "opipe/schedule.h"
#include "tests/support/support.h"

enum { ASKED_RANKS = 512, ASKED_INSTANCES = 1 << 14 };

/* A plugin's answer, and the question. */
typedef struct asked_order {
  opipe_layout layout;
  uint32_t instance_rank[ASKED_INSTANCES];
  uint32_t mode, n_microbatches;
  opipe_action *actions; /* sorted by rank, each rank's in its own order */
  uint32_t n, room;
  uint32_t first[ASKED_RANKS + 1]; /* of each rank's actions */
} asked_order;

typedef struct asked_plugin {
  char id[48];
  const opipe_plugin *plugin;
  opipe_instance *self;
  const opipe_schedule *table;
} asked_plugin;

static opipe_error asked_err = OPIPE_ERROR_INIT;
static uint64_t asked_live_bytes; /* of plugins, so that what they leave behind is seen */
static uint64_t asked_fail_at;    /* that allocation from now fails; 0: none */

static inline void *asked_realloc(void *ctx, void *ptr, size_t old_size, size_t size,
                                  size_t align) {
  (void)ctx;
  (void)align;
  if (size > 0 && asked_fail_at > 0 && --asked_fail_at == 0)
    return NULL;
  (void)__atomic_add_fetch(&asked_live_bytes, size - (ptr == NULL ? 0 : old_size),
                           __ATOMIC_RELAXED);
  if (size == 0) {
    free(ptr);
    return NULL;
  }
  return realloc(ptr, size);
}

/* By the first n characters of `id`; open until the process ends. */
static inline const asked_plugin *asked_open_n(const char *id, size_t n) {
  static const opipe_host host = {.struct_size = (uint32_t)OPIPE_END(opipe_host, get_interface),
                                  .abi_major = OPIPE_ABI_MAJOR,
                                  .abi_minor = OPIPE_ABI_MINOR,
                                  .realloc = asked_realloc};
  static asked_plugin opened[32];
  static uint32_t n_opened;
  char path[128];
  for (uint32_t i = 0; i < n_opened; ++i) {
    if (strncmp(opened[i].id, id, n) == 0 && opened[i].id[n] == '\0')
      return &opened[i];
  }
  asked_plugin *p = &opened[n_opened];
  (void)snprintf(p->id, sizeof p->id, "%.*s", (int)n, id);
  (void)snprintf(path, sizeof path, "lib/onnx-pipe/opipe-schedule-%.47s.so", p->id);
  void *library = dlopen(opi_test_build(path), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  p->plugin = library == NULL ? NULL : dlsym(library, "opipe_plugin_v1");
  if (p->plugin == NULL || p->plugin->open(&host, &p->self, &asked_err) < 0) {
    fprintf(stderr, "%s: %s\n", path, library == NULL ? dlerror() : asked_err.message);
    exit(1);
  }
  OPI_ASSERT_STR(p->plugin->id, p->id);
  p->table = p->plugin->get_interface(p->self, OPIPE_SCHEDULE_ID);
  ++n_opened;
  return p;
}

static inline const asked_plugin *asked_open(const char *id) {
  return asked_open_n(id, strlen(id));
}

/* An opipe_emit_fn: collects. */
static inline opipe_status asked_take(void *ctx, const opipe_action *actions, uint32_t n,
                                      opipe_error *err) {
  asked_order *o = ctx;
  (void)err;
  if (o->n + n > o->room) {
    o->room = 2 * (o->n + n);
    o->actions = realloc(o->actions, o->room * sizeof *actions);
    if (o->actions == NULL)
      exit(1);
  }
  memcpy(o->actions + o->n, actions, n * sizeof *actions);
  o->n += n;
  return OPIPE_OK;
}

/* By rank, keeping each rank's order. */
static inline void asked_sort(asked_order *o) {
  opipe_action *sorted = malloc((o->n + 1) * sizeof *sorted);
  uint32_t n = 0;
  if (sorted == NULL)
    exit(1);
  for (uint32_t rank = 0; rank < o->layout.n_ranks; ++rank) {
    o->first[rank] = n;
    for (uint32_t i = 0; i < o->n; ++i) {
      if (o->actions[i].rank == rank)
        sorted[n++] = o->actions[i];
    }
  }
  o->first[o->layout.n_ranks] = n;
  free(o->actions);
  o->actions = sorted;
  o->room = o->n + 1;
  OPI_ASSERT_INT(n, o->n); /* every rank is in range */
}

/* Frees what an order holds; it may be used again. */
static inline void asked_end(asked_order *o) {
  free(o->actions);
  o->actions = NULL;
}

/* Layout, then order. `request` says everything but the costs, which are `problem`'s arrays by
 * instance. asked_err has the message of a failure. End it with asked_end in any case. */
static inline opipe_status asked_ask(const asked_plugin *p, const opipe_layout_request *request,
                                     opipe_schedule_problem *problem, asked_order *o) {
  memset(o, 0, sizeof *o);
  asked_err.message[0] = '\0';
  o->mode = request->mode;
  o->n_microbatches = request->n_microbatches;
  o->layout.struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths);
  o->layout.instance_rank = o->instance_rank;
  o->layout.instance_room = ASKED_INSTANCES;
  problem->struct_size = (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes);
  problem->mode = request->mode;
  problem->n_microbatches = request->n_microbatches;
  problem->n_settings = request->n_settings;
  problem->settings = request->settings;
  problem->layout = &o->layout;
  opipe_status status = p->table->layout(p->self, request, &o->layout, &asked_err);
  if (status >= 0)
    status = p->table->plan(p->self, problem, asked_take, o, &asked_err);
  if (status >= 0)
    asked_sort(o);
  return status;
}

#endif /* TESTS_PLUGINS_SCHEDULES_ASKED_H */
