/* SPDX-License-Identifier: Apache-2.0 */
/* Updates and norms of many parameters at once: two slots that a backend may lack. */
#ifndef CONFORMANCE_BACKEND_MANY_H
#define CONFORMANCE_BACKEND_MANY_H

#include "backend_shared.h"

#if OPIPE_ABI_MINOR >= 3

enum { PARTS = 3, OPERANDS = 4, LONGEST = 5000 };
static const uint64_t part_elems[PARTS] = {1, 33, LONGEST};

/* Weight, gradient and moments of every part, twice; behind them sums of squares. */
typedef struct many {
  opipe_buffer *memory;
  opipe_region at[2][PARTS][OPERANDS], sums[2][PARTS];
} many;

static bool open_many(const subject *s, many *m) {
  static float numbers[LONGEST];
  uint64_t n = 0;
  memset(m, 0, sizeof *m);
  for (int set = 0; set < 2; ++set) {
    for (int i = 0; i < PARTS; ++i) {
      for (int k = 0; k < OPERANDS; ++k) {
        m->at[set][i][k] = (opipe_region){NULL, n, part_elems[i] * sizeof(float)};
        n += aligned(s, part_elems[i] * sizeof(float));
      }
      m->sums[set][i] = (opipe_region){NULL, n, sizeof(double)};
      n += aligned(s, sizeof(double));
    }
  }
  if (!conf_made(s->t->buffer_alloc(s->device, n, OPIPE_BUFFER_PARAMS, &m->memory, &err),
                 &m->memory, &err, "buffer_alloc"))
    return false;
  for (int set = 0; set < 2; ++set) {
    for (int i = 0; i < PARTS; ++i) {
      m->sums[set][i].buffer = m->memory;
      for (int k = 0; k < OPERANDS; ++k) {
        for (uint64_t e = 0; e < part_elems[i]; ++e)
          numbers[e] = (float)((e * 7 + (uint64_t)(i * 5 + k) * 3) % 19 + 1) * 0.0625f;
        m->at[set][i][k].buffer = m->memory;
        conf_ok(s->t->write(s->queue, &m->at[set][i][k], numbers, &err), &err, "write");
        finish(s);
      }
    }
  }
  return true;
}

static void same_bytes(const subject *s, const opipe_region *a, const opipe_region *b,
                       const char *what) {
  static unsigned char data[2][LONGEST * sizeof(float)];
  conf_ok(s->t->read(s->queue, data[0], a, &err), &err, "read");
  conf_ok(s->t->read(s->queue, data[1], b, &err), &err, "read");
  finish(s);
  conf_check(memcmp(data[0], data[1], (size_t)a->n_bytes) == 0, "%s: other bits than one by one",
             what);
}

static void update_both(const subject *s, const many *m, uint32_t kind) {
  opipe_update update = {.struct_size = (uint32_t)OPIPE_END(opipe_update, decay),
                         .kind = kind,
                         .flags = OPIPE_UPDATE_CLEAR,
                         .gradient_scale = 0.5,
                         .lr = 0.125,
                         .momentum = 0.75,
                         .beta1 = 0.9,
                         .beta2 = 0.99,
                         .correction1 = 0.19,
                         .correction2 = 0.0199,
                         .epsilon = 1e-6};
  opipe_update_part parts[PARTS];
  opipe_region gradients[PARTS];
  for (int i = 0; i < PARTS; ++i) {
    parts[i] = (opipe_update_part){.weight = m->at[0][i][0],
                                   .gradient = m->at[0][i][1],
                                   .first = m->at[0][i][2],
                                   .second = m->at[0][i][3],
                                   .n_elems = part_elems[i],
                                   .decay = 0.01 * i};
    gradients[i] = m->at[0][i][1];
  }
  const uint64_t before = conf_allocations();
  conf_ok(s->t->sum_squares_many(s->queue, m->sums[0], gradients, PARTS, &err), &err,
          "sum_squares_many");
  conf_ok(s->t->update_many(s->queue, &update, parts, PARTS, &err), &err, "update_many");
  conf_check(conf_allocations() == before, "%llu allocations in a step",
             (unsigned long long)(conf_allocations() - before));
  for (int i = 0; i < PARTS; ++i) {
    update.n_elems = part_elems[i];
    update.weight = m->at[1][i][0];
    update.gradient = m->at[1][i][1];
    update.first = m->at[1][i][2];
    update.second = m->at[1][i][3];
    update.decay = 0.01 * i;
    conf_ok(s->t->sum_squares(s->queue, &m->sums[1][i], &m->at[1][i][1], &err), &err,
            "sum_squares");
    conf_ok(s->t->update(s->queue, &update, &err), &err, "update");
  }
}

static void check_many(const subject *s) {
  many m;
  conf_case("many parameters at once");
  if (!HAS_SLOT(s, update_many)) {
    conf_skip("the backend takes one parameter at a time");
    return;
  }
  for (uint32_t kind = 0; kind < OPIPE_N_OPTIMIZERS; ++kind) {
    if (open_many(s, &m)) {
      update_both(s, &m, kind);
      for (int i = 0; i < PARTS; ++i) {
        same_bytes(s, &m.sums[0][i], &m.sums[1][i], "sum_squares_many");
        for (int k = 0; k < OPERANDS; ++k)
          same_bytes(s, &m.at[0][i][k], &m.at[1][i][k], "update_many");
      }
    }
    s->t->buffer_free(m.memory);
  }
}
#else
static void check_many(const subject *s) {
  (void)s;
}
#endif

#endif /* CONFORMANCE_BACKEND_MANY_H */
