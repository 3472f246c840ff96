/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule with a defect. */
#include "seeded.h"

static const opipe_schedule *real;

/* ---- records on their way to the sink ---- */

enum { HELD_MOST = 1 << 16 };

typedef struct filter {
  opipe_emit_fn emit;
  void *ctx;
  uint32_t n_ranks, n_stages, n;
  uint32_t call; /* of plan, from 0 */
  bool train, other, varied;
} filter;

static opipe_action held[HELD_MOST]; /* to be emitted the other way about */

static opipe_status pass_on(void *ctx, const opipe_action *action, uint32_t n, opipe_error *err) {
  filter *f = ctx;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    opipe_action a = action[i];
    const uint32_t at = f->n++;
    if (seeded("impure") && at == 0 && f->call % 2 == 1)
      a.flags |= OPIPE_ACTION_OVERLAP_NEXT;
    if (seeded("impure-instance") && at == 0 && f->other)
      a.flags |= OPIPE_ACTION_OVERLAP_NEXT;
    if (seeded("rank") && at == 1)
      a.rank = (a.rank + 1) % (f->n_ranks + 1);
    if (seeded("stage") && at == 1)
      a.stage = f->n_stages;
    if (seeded("pass") && at == 1)
      a.pass = 9;
    if (seeded("version"))
      a.version = 3;
    if (seeded("backward-in-forward") && !f->train && at == 1)
      a.pass = OPIPE_PASS_BACKWARD;
    if (seeded("missing") && at == 1)
      continue;
    if (seeded("twice") && at == 1)
      status = f->emit(f->ctx, &a, 1, err);
    if (f->train && (seeded("deadlock") || (seeded("deadlock-by-cost") && f->varied))) {
      held[at] = a;
      continue;
    }
    if (status >= 0)
      status = f->emit(f->ctx, &a, 1, err);
  }
  return status;
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *ctx, opipe_error *err) {
  static uint32_t n_calls;
  static const opipe_instance *first;
  opipe_schedule_problem plain = *problem;
  if (first == NULL)
    first = self;
  filter f = {.emit = emit,
              .ctx = ctx,
              .n_ranks = problem->layout->n_ranks,
              .n_stages = problem->layout->n_stages,
              .call = n_calls++,
              .train = problem->mode == OPIPE_MODE_TRAIN,
              .other = self != first};
  const uint32_t n = problem->layout->n_stages * problem->layout->n_replicas;
  f.varied = problem->forward_ns[0] != problem->forward_ns[n - 1];
  if (seeded("options-ignored"))
    plain.n_settings = 0;
  if (seeded("plan-leaks"))
    lose_memory();
  if (seeded("reads-behind"))
    f.n_ranks += (uint32_t)problem->forward_ns[n];
  if (seeded("records-null"))
    return emit(ctx, NULL, 4, err);
  const opipe_status status = real->plan(self, &plain, pass_on, &f, err);
  opipe_status ended = status;
  if (f.train && (seeded("deadlock") || (seeded("deadlock-by-cost") && f.varied))) {
    for (uint32_t i = f.n; i > 0 && ended >= 0; --i)
      ended = emit(ctx, &held[i - 1], 1, err);
  }
  if (seeded("error-swallowed"))
    return OPIPE_OK;
  return seeded("error-changed") && ended < 0 ? OPIPE_E_INTERNAL : ended;
}

static opipe_status layout(opipe_instance *self, const opipe_layout_request *request,
                           opipe_layout *io_layout, opipe_error *err) {
  static uint32_t n_calls;
  opipe_layout_request plain = *request;
  if (seeded("options-ignored"))
    plain.n_settings = 0;
  if (seeded("layout-pending"))
    return OPIPE_PENDING;
  if (seeded("reads-behind-request"))
    plain.mode += ((const volatile uint32_t *)request)[sizeof *request / sizeof(uint32_t)];
  const opipe_status status = real->layout(self, &plain, io_layout, err);
  if (seeded("layout-silent"))
    return silence(status, err);
  if (status < 0)
    return status;
  if (seeded("layout-impure"))
    io_layout->in_flight = n_calls++;
  if (seeded("layout-huge")) {
    io_layout->n_stages = 1u << 31;
    io_layout->n_replicas = 2;
  }
  if (seeded("layout-empty"))
    io_layout->n_replicas = 0;
  if (seeded("layout-rank"))
    io_layout->instance_rank[0] = io_layout->n_ranks;
  if (seeded("layout-parts") && request->mode == OPIPE_MODE_FORWARD)
    io_layout->n_parts = 2;
  if (seeded("writes-behind"))
    io_layout->instance_rank[io_layout->n_stages * io_layout->n_replicas] = 0;
  return status;
}

static opipe_status options(opipe_instance *self, const opipe_schedule_option **out_options,
                            uint32_t *out_count, opipe_error *err) {
  static opipe_schedule_option one = {"depth", NULL, NULL, "how deep", 1, 4, 'i', 0};
  const opipe_status status = real->options(self, out_options, out_count, err);
  if (seeded("options-null")) {
    *out_options = NULL;
    *out_count = 3;
  }
  if (seeded("option-key") || seeded("option-type") || seeded("option-preset") ||
      seeded("option-unused")) {
    one.key = seeded("option-key") ? NULL : one.key;
    one.type = seeded("option-type") ? 'q' : one.type;
    one.preset = seeded("option-preset") ? "7" : NULL;
    *out_options = &one;
    *out_count = 1;
  }
  return status;
}

void seeded_damage(void *table) {
  opipe_schedule *t = table;
  static opipe_schedule copy;
  copy = *t;
  real = &copy;
  t->options = options;
  t->layout = layout;
  t->plan = plan;
}
