/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the checks of schedules: the two calls, with arguments that end where a page ends that
 * nobody may touch, and their answers.
 */
#ifndef CONFORMANCE_SCHEDULE_KIT_H
#define CONFORMANCE_SCHEDULE_KIT_H

#include <opipe/schedule.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance.h"

enum {
  RANKS_MOST = 6,
  MICROBATCHES_MOST = 9,
  ACTIONS_MOST = 1 << 16,
  INSTANCES_MOST = 4096,
  SETTINGS_MOST = 16
};

typedef struct recorded {
  opipe_action actions[ACTIONS_MOST];
  uint32_t n;
  uint32_t fail_after; /* so many are taken; UINT32_MAX: all */
  opipe_status fail_with;
} recorded;

typedef struct subject {
  const opipe_schedule *table;
  opipe_instance *self;
  opipe_schedule_setting settings[SETTINGS_MOST];
  uint32_t n_settings;
} subject;

/* A layout to ask for. */
typedef struct request {
  uint32_t mode, ranks, stages, m;
} request;

/* ---- memory that ends at a page that nobody may touch ---- */

enum {
  GUARD_REQUEST = 0,
  GUARD_LAYOUT,
  GUARD_RANKS,
  GUARD_PROBLEM,
  GUARD_SETTINGS,
  GUARD_COSTS, /* and those of the other four arrays, and of the ranks' memory */
  GUARDS = GUARD_COSTS + 6,
  GUARD_BYTES = 1 << 16
};

/* The last n_bytes of such memory; what was there before is gone. */
static void *guarded(uint32_t which, size_t n_bytes) {
  static unsigned char *ends[GUARDS];
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  if (ends[which] == NULL) {
    void *data =
        mmap(NULL, GUARD_BYTES + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
      exit(2);
    ends[which] = (unsigned char *)data + GUARD_BYTES;
    (void)mprotect(ends[which], page, PROT_NONE);
  }
  memset(ends[which] - GUARD_BYTES, 0x5a, GUARD_BYTES);
  return ends[which] - n_bytes;
}

static void *guarded_copy(uint32_t which, const void *data, size_t n_bytes) {
  return memcpy(guarded(which, n_bytes), data, n_bytes);
}

/* ---- the two calls ---- */

static opipe_status refuse(opipe_error *err, opipe_status status) {
  if (err != NULL) {
    err->status = status;
    (void)snprintf(err->message, sizeof err->message, "the sink takes no more");
  }
  return status;
}

static opipe_status record(void *ctx, const opipe_action *actions, uint32_t n, opipe_error *err) {
  recorded *r = ctx;
  if (n > r->fail_after || r->n > r->fail_after - n)
    return refuse(err, r->fail_with);
  if (n > ACTIONS_MOST || r->n > ACTIONS_MOST - n || (actions == NULL && n != 0))
    return refuse(err, OPIPE_E_LIMIT);
  if (n != 0)
    memcpy(&r->actions[r->n], actions, n * sizeof(*actions));
  r->n += n;
  return OPIPE_OK;
}

/* instance_rank [room] gets what was written there. */
static opipe_status lay_out(const subject *s, const request *q, uint32_t *instance_rank,
                            uint32_t room, opipe_layout *out, opipe_error *err) {
  const opipe_layout_request asked = {
      (uint32_t)OPIPE_END(opipe_layout_request, settings),
      q->mode,
      q->ranks,
      q->stages,
      q->m,
      s->n_settings,
      guarded_copy(GUARD_SETTINGS, s->settings, s->n_settings * sizeof s->settings[0])};
  uint32_t *ranks = guarded(GUARD_RANKS, room * sizeof *ranks);
  memset(out, 0, sizeof(*out));
  out->struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths);
  out->instance_room = room;
  out->instance_rank = ranks;
  err->message[0] = '\0';
  opipe_layout *layout = guarded_copy(GUARD_LAYOUT, out, sizeof *out);
  const opipe_status status =
      s->table->layout(s->self, guarded_copy(GUARD_REQUEST, &asked, sizeof asked), layout, err);
  *out = *layout;
  if (conf_check(out->struct_size == OPIPE_END(opipe_layout, slice_lengths) &&
                     out->instance_room == room && out->instance_rank == ranks,
                 "layout changes struct_size, instance_room or instance_rank"))
    memcpy(instance_rank, ranks, room * sizeof *ranks);
  out->instance_rank = instance_rank;
  return status;
}

static uint64_t *cost_of(uint32_t which, uint32_t n, uint64_t least, uint64_t spread) {
  uint64_t *costs = guarded(GUARD_COSTS + which, n * sizeof *costs);
  for (uint32_t i = 0; i < n; ++i)
    costs[i] = least + (spread == 0 ? 0 : (i * 7919u + which * 104729u) % spread);
  return costs;
}

/* spread: by how many nanoseconds stages may differ. */
static opipe_status order(const subject *s, uint32_t mode, const opipe_layout *layout, uint32_t m,
                          uint64_t spread, recorded *out, opipe_error *err) {
  const uint32_t n = layout->n_stages * layout->n_replicas;
  const uint64_t back = mode == OPIPE_MODE_TRAIN ? 1000 : 0;
  const uint64_t back_spread = mode == OPIPE_MODE_TRAIN ? spread : 0;
  opipe_layout known = *layout;
  known.instance_room = n;
  known.instance_rank =
      guarded_copy(GUARD_RANKS, layout->instance_rank, n * sizeof *layout->instance_rank);
  const opipe_schedule_problem problem = {
      (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes),
      mode,
      m,
      s->n_settings,
      guarded_copy(GUARD_SETTINGS, s->settings, s->n_settings * sizeof s->settings[0]),
      guarded_copy(GUARD_LAYOUT, &known, sizeof known),
      cost_of(0, n, 1000, spread),
      cost_of(1, n, back, back_spread),
      cost_of(2, n, back, back_spread),
      cost_of(3, n, 0, spread),
      cost_of(4, n, 0, spread),
      cost_of(5, layout->n_ranks, UINT64_MAX, 0)};
  out->n = 0;
  err->message[0] = '\0';
  return s->table->plan(s->self, guarded_copy(GUARD_PROBLEM, &problem, sizeof problem), record, out,
                        err);
}

static uint32_t slices_of(const opipe_layout *l) {
  return l->n_slices == 0 ? 1 : l->n_slices;
}
static uint32_t parts_of(const opipe_layout *l) {
  return l->n_parts == 0 ? 1 : l->n_parts;
}

#endif /* CONFORMANCE_SCHEDULE_KIT_H */
