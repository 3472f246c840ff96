/* SPDX-License-Identifier: Apache-2.0 */
/* A schedule plugin that is one of the project's own with faults in its options, its layout and its
 * records. Arrays are as long as their counts say, up to a bound, and end in a red zone.
 */
#ifndef TESTS_FUZZ_PLUGIN_ORDERS_H
#define TESTS_FUZZ_PLUGIN_ORDERS_H

#include "tests/fuzz/plugin_devices.h"

static const opipe_schedule *real_schedule;

enum { OPTIONS_MOST = 256, SLICES_MOST = 1 << 17 };

/* ---- options ---- */

static char *odd_text(input *in, bool may_be_null) {
  const uint32_t how = take(in, 5);
  const size_t n = how == 1 ? 70000 : how == 2 ? 3 : 5;
  if (how == 0 && may_be_null)
    return NULL;
  char *text = block(n + 1);
  memset(text, how == 3 ? 0xff : how == 4 ? '\n' : 'k', n);
  return text;
}

static void lie_of_options(const fault *f, const opipe_schedule_option **out_options,
                           uint32_t *out_count) {
  input in = f->bytes;
  const uint32_t given = *out_count;
  if (f->field % 4 == 0) {
    *out_options = NULL;
    return;
  }
  uint32_t n = f->field % 4 == 1 ? (uint32_t)take_number(&in, given) : given + 1;
  n = n > OPTIONS_MOST ? OPTIONS_MOST : n;
  opipe_schedule_option *list = block(n * sizeof *list);
  for (uint32_t i = 0; i < n; ++i) {
    list[i] = i < given ? (*out_options)[i] : (opipe_schedule_option){.key = "more", .type = 'i'};
    if (i + 1 < n && i % 3 != f->extra[0] % 3)
      continue;
    const uint32_t how = take(&in, 7);
    list[i].key = how == 0 ? odd_text(&in, true) : list[i].key;
    list[i].choices = how == 1 ? odd_text(&in, true) : list[i].choices;
    list[i].preset = how == 2 ? odd_text(&in, true) : list[i].preset;
    list[i].help = how == 3 ? odd_text(&in, true) : list[i].help;
    list[i].type = how == 4 ? (uint32_t) "isxtq"[take(&in, 5)] : list[i].type;
    list[i].min = how == 5 ? take_double(&in) : list[i].min;
    list[i].max = how >= 5 ? take_double(&in) : list[i].max;
  }
  *out_options = list;
  *out_count = n;
}

static opipe_status schedule_options(opipe_instance *self,
                                     const opipe_schedule_option **out_options, uint32_t *out_count,
                                     opipe_error *err) {
  const fault *f = next_fault(AT(schedule, options));
  if (fails(f))
    return answer(f, err);
  const opipe_status status =
      named(real_schedule->options(self->real, out_options, out_count, err), err);
  if (status == OPIPE_OK && lies(f))
    lie_of_options(f, out_options, out_count);
  return status;
}

/* ---- layout ---- */

/* Lengths for as many slices as are claimed, where there is so much memory. */
static void lie_of_slices(input *in, opipe_layout *l) {
  l->n_slices = (uint32_t)take_number(in, l->n_slices);
  l->slice_lengths = NULL;
  if (l->n_slices > SLICES_MOST || take(in, 2) == 0)
    return;
  uint32_t *lengths = block(l->n_slices * sizeof *lengths);
  for (uint32_t i = 0; i < l->n_slices; ++i)
    lengths[i] = (uint32_t)take_number(in, 1);
  l->slice_lengths = lengths;
}

static void lie_of_layout(const fault *f, opipe_layout *l, uint32_t room, uint32_t *ranks) {
  input in = f->bytes;
  uint32_t *fields[] = {&l->n_ranks, &l->n_stages,  &l->n_replicas,    &l->n_parts,    &l->versions,
                        &l->sync,    &l->in_flight, &l->instance_room, &l->struct_size};
  const uint32_t which = f->field % 12;
  if (which < OPI_COUNT(fields)) {
    *fields[which] = (uint32_t)take_number(&in, *fields[which]);
  } else if (which == 9) {
    lie_of_slices(&in, l);
  } else if (which == 10) {
    l->instance_rank = NULL;
  } else if (room > 0) {
    uint32_t *rank = &ranks[f->extra[0] % room];
    *rank = (uint32_t)take_number(&in, *rank);
  }
}

static opipe_status schedule_layout(opipe_instance *self, const opipe_layout_request *request,
                                    opipe_layout *io_layout, opipe_error *err) {
  const fault *f = next_fault(AT(schedule, layout));
  const uint32_t room = io_layout->instance_room;
  uint32_t *ranks = io_layout->instance_rank;
  if (fails(f) && f->field % 2 == 0)
    return answer(f, err);
  const opipe_status status =
      named(real_schedule->layout(self->real, request, io_layout, err), err);
  if (fails(f)) /* with a layout all the same */
    return answer(f, err);
  if (lies(f))
    lie_of_layout(f, io_layout, room, ranks);
  return status;
}

/* ---- records ---- */

typedef struct emitter {
  opipe_emit_fn emit;
  void *ctx;
  const fault *f;
  uint32_t n; /* records so far */
} emitter;

static void lie_of_action(const fault *f, opipe_action *a) {
  input in = f->bytes;
  switch (f->field % 10) {
    case 0:
      a->rank = (uint32_t)take_number(&in, a->rank);
      break;
    case 1:
      a->stage = (uint32_t)take_number(&in, a->stage);
      break;
    case 2:
      a->microbatch = (uint32_t)take_number(&in, a->microbatch);
      break;
    case 3:
      a->replica = (uint16_t)take_number(&in, a->replica);
      break;
    case 4:
      a->slice = (uint16_t)take_number(&in, a->slice);
      break;
    case 5:
      a->part = (uint8_t)take_number(&in, a->part);
      break;
    case 6:
      a->pass = (uint8_t)take_number(&in, a->pass);
      break;
    case 7:
      a->version = (uint16_t)take_number(&in, a->version);
      break;
    case 8:
      a->flags = (uint32_t)take_number(&in, a->flags);
      break;
    default:
      a->reserved = take_number(&in, a->reserved);
  }
}

/* One record at a time from memory of its own: left out, twice, changed, or after a refusal. */
static opipe_status emit_falsely(void *ctx, const opipe_action *actions, uint32_t n,
                                 opipe_error *err) {
  emitter *e = ctx;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n; ++i, ++e->n) {
    opipe_action *one = malloc(sizeof *one);
    const bool now = e->n == e->f->extra[0] % 24;
    const uint32_t how = now ? e->f->extra[1] % 8 : 7;
    must(one != NULL, "the target has no memory");
    *one = actions[i];
    if (now && how > 2)
      lie_of_action(e->f, one);
    for (uint32_t times = how == 0 ? 0 : how == 1 ? 2 : how == 2 ? 40 : 1; times > 0; --times)
      status = e->emit(e->ctx, one, how == 2 ? 0 : 1, err);
    free(one);
    if (status < 0 && e->f->extra[1] < 128)
      return status;
  }
  return e->f->extra[1] < 128 ? status : OPIPE_OK;
}

static opipe_status schedule_plan(opipe_instance *self, const opipe_schedule_problem *problem,
                                  opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const fault *f = next_fault(AT(schedule, plan));
  if (fails(f) && f->field % 2 == 0)
    return answer(f, err);
  emitter e = {emit, emit_ctx, f, 0};
  const opipe_status status =
      lies(f) ? named(real_schedule->plan(self->real, problem, emit_falsely, &e, err), err)
              : named(real_schedule->plan(self->real, problem, emit, emit_ctx, err), err);
  return fails(f) ? answer(f, err) : status;
}

static const opipe_schedule false_schedule = {.struct_size = (uint32_t)sizeof(opipe_schedule),
                                              .options = schedule_options,
                                              .layout = schedule_layout,
                                              .plan = schedule_plan};

#endif /* TESTS_FUZZ_PLUGIN_ORDERS_H */
