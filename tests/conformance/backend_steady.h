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

/* The sample, then the sample node by node, then the sample again. */
static void check_steady(const subject *s, const sample *g) {
  bound first, other, again;
  float results[4][2 * N];
  conf_case("programs that are compiled again");
  memset(&other, 0, sizeof other);
  memset(&again, 0, sizeof again);
  if (open_bound(s, g, 0, &first) && open_bound(s, g, OPIPE_COMPILE_NO_FUSE, &other) &&
      open_bound(s, g, 0, &again)) {
    same_program(&first, &again);
    run_and_compare(s, &other, 1, 2.0f);
    run_filled(s, &first, 0, results[0]);
    run_filled(s, &first, 0xff, results[1]);
    run_filled(s, &again, 0x7f, results[2]);
    run_filled(s, &other, 0xff, results[3]);
    conf_check(memcmp(results[0], results[1], sizeof results[0]) == 0,
               "results depend on what the arena, or an output, held before");
    conf_check(memcmp(results[0], results[2], sizeof results[0]) == 0,
               "a program that is compiled again behind another one gives other bits");
    run_filled(s, &other, 0, results[0]);
    conf_check(memcmp(results[0], results[3], sizeof results[0]) == 0,
               "without fusion, results depend on what the arena, or an output, held before");
    check_guards(s, &first);
    check_guards(s, &other);
    check_guards(s, &again);
  }
  close_bound(s, &again);
  close_bound(s, &other);
  close_bound(s, &first);
}

#endif /* CONFORMANCE_BACKEND_STEADY_H */
