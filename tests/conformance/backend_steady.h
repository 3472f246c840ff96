/* SPDX-License-Identifier: Apache-2.0 */
/* A program is the same whatever was compiled, or lay in its arena, before. */
#ifndef CONFORMANCE_BACKEND_STEADY_H
#define CONFORMANCE_BACKEND_STEADY_H

#include "backend_kit.h"

enum { STEADY_ARENA_MOST = 1 << 16 };

/* Results of a run, whose arena was filled with `filling`. */
static void run_filled(const subject *s, const bound *b, unsigned char filling, float *out) {
  static unsigned char pattern[STEADY_ARENA_MOST];
  float x[N];
  for (int i = 0; i < N; ++i)
    x[i] = (float)i * 0.375f - 5.0f;
  memset(pattern, filling, sizeof pattern);
  if (b->arena.n_bytes > 0 && b->arena.n_bytes <= sizeof pattern)
    conf_ok(s->t->write(s->queue, &b->arena, pattern, &err), &err, "write");
  conf_ok(s->t->write(s->queue, &b->regions[0][1], pattern, &err), &err, "write");
  conf_ok(s->t->write(s->queue, &b->regions[0][2], pattern, &err), &err, "write");
  conf_ok(s->t->write(s->queue, &b->regions[0][0], x, &err), &err, "write");
  conf_ok(s->t->run(b->bindings[0], s->queue, NULL, 0, &err), &err, "run");
  conf_ok(s->t->read(s->queue, out, &b->regions[0][1], &err), &err, "read");
  conf_ok(s->t->read(s->queue, out + N, &b->regions[0][2], &err), &err, "read");
  finish(s);
}

static void same_program(const bound *a, const bound *b) {
  conf_check(a->info.n_kernels == b->info.n_kernels && a->info.temp_bytes == b->info.temp_bytes &&
                 a->info.workspace_bytes == b->info.workspace_bytes &&
                 a->info.arena_bytes == b->info.arena_bytes && a->params_bytes == b->params_bytes,
             "a program that is compiled again behind another one is another: arena %llu, then "
             "%llu",
             (unsigned long long)a->info.arena_bytes, (unsigned long long)b->info.arena_bytes);
}

/* sum = x w (x + w) + (relu(x) + relu(x w)), y = relu(sum): more values live at once than a
 * program can keep where its outputs will be. */
static void make_deep(sample *g) {
  static const uint32_t in[NODES_MOST][2] = {{0, 1}, {0, 1}, {0, 0}, {2, 2},
                                             {2, 3}, {4, 5}, {6, 7}, {8, 8}};
  static const uint32_t out[NODES_MOST] = {2, 3, 4, 5, 6, 7, 8, 9};
  static const char *const ops[NODES_MOST] = {"Mul", "Add", "Relu", "Relu",
                                              "Mul", "Add", "Add",  "Relu"};
  static const char *const names[VALUES_MOST] = {"x",  "w",  "t1", "t2",  "t3",
                                                 "t4", "t5", "t6", "sum", "y"};
  make_sample(g);
  for (uint32_t i = 2; i < VALUES_MOST; ++i) {
    const uint32_t slot = i < 8 ? OPIPE_NONE : i - 7;
    g->values[i] = value(names[i], i < 8 ? OPIPE_VALUE_TEMP : OPIPE_VALUE_OUTPUT, slot);
  }
  for (uint32_t i = 0; i < NODES_MOST; ++i) {
    g->nodes[i] = node(ops[i], in[i], ops[i][0] == 'R' ? 1 : 2, &out[i], 14);
    g->nodes[i].name = names[out[i]];
  }
  g->graph.n_values = VALUES_MOST;
  g->graph.n_nodes = NODES_MOST;
}

static void check_deep(const float *got) {
  for (int i = 0; i < N; ++i) {
    const float x = (float)i * 0.375f - 5.0f, w = weights[i], xw = x * w;
    const float sum = xw * (x + w) + ((x > 0 ? x : 0) + (xw > 0 ? xw : 0));
    const float y = sum > 0 ? sum : 0, near = 1e-4f;
    if (!(got[i] - sum <= near && sum - got[i] <= near && got[N + i] - y <= near &&
          y - got[N + i] <= near)) {
      conf_check(false, "element %d: %g and %g, expected %g and %g", i, (double)got[i],
                 (double)got[N + i], (double)sum, (double)y);
      return;
    }
  }
  conf_check(true, "run");
}

static void run_steady(const subject *s, const bound *first, const bound *other,
                       const bound *again) {
  float results[4][2 * N];
  same_program(first, again);
  run_filled(s, first, 0, results[0]);
  run_filled(s, first, 0xff, results[1]);
  run_filled(s, again, 0x7f, results[2]);
  check_deep(results[0]);
  conf_check(memcmp(results[0], results[1], sizeof results[0]) == 0,
             "results depend on what the arena, or an output, held before");
  conf_check(memcmp(results[0], results[2], sizeof results[0]) == 0,
             "a program that is compiled again behind another one gives other bits");
  run_filled(s, other, 0, results[2]);
  run_filled(s, other, 0xff, results[3]);
  check_deep(results[2]);
  conf_check(memcmp(results[2], results[3], sizeof results[2]) == 0,
             "without fusion, results depend on what the arena, or an output, held before");
  check_guards(s, first);
  check_guards(s, other);
  check_guards(s, again);
}

/* A program, the same node by node, then the first once more. */
static void check_steady(const subject *s) {
  sample g;
  bound first, other, again;
  conf_case("programs that are compiled again");
  make_deep(&g);
  memset(&other, 0, sizeof other);
  memset(&again, 0, sizeof again);
  if (open_bound(s, &g, 0, &first) && open_bound(s, &g, OPIPE_COMPILE_NO_FUSE, &other) &&
      open_bound(s, &g, 0, &again))
    run_steady(s, &first, &other, &again);
  close_bound(s, &again);
  close_bound(s, &other);
  close_bound(s, &first);
}

#endif /* CONFORMANCE_BACKEND_STEADY_H */
