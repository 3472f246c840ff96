/* SPDX-License-Identifier: Apache-2.0 */
/* Conformance of schedule plugins: conformance-schedule PATH.so [key=value ...]
 *
 * For every small number of ranks and micro-batches: the layout is pure and in range; the order is
 * pure, complete, and can be executed by ranks that each follow their own list; errors of the sink
 * are handed on. A constraint that a case misses must be an error with a message, never a bad plan.
 */
#include <opipe/schedule.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
  uint32_t fail_after; /* 0: never */
} recorded;

typedef struct subject {
  const opipe_schedule *table;
  opipe_instance *self;
  opipe_schedule_setting settings[SETTINGS_MOST];
  uint32_t n_settings;
} subject;

static opipe_status record(void *ctx, const opipe_action *actions, uint32_t n, opipe_error *err) {
  recorded *r = ctx;
  (void)err;
  if (r->fail_after != 0 && r->n + n > r->fail_after)
    return OPIPE_E_CANCELLED;
  if (r->n + n > ACTIONS_MOST)
    return OPIPE_E_LIMIT;
  memcpy(&r->actions[r->n], actions, n * sizeof(*actions));
  r->n += n;
  return OPIPE_OK;
}

static opipe_status lay_out(const subject *s, uint32_t mode, uint32_t ranks, uint32_t stages,
                            uint32_t m, uint32_t *instance_rank, uint32_t room, opipe_layout *out,
                            opipe_error *err) {
  const opipe_layout_request request = {(uint32_t)OPIPE_END(opipe_layout_request, settings),
                                        mode,
                                        ranks,
                                        stages,
                                        m,
                                        s->n_settings,
                                        s->settings};
  memset(out, 0, sizeof(*out));
  out->struct_size = (uint32_t)OPIPE_END(opipe_layout, slice_lengths);
  out->instance_room = room;
  out->instance_rank = instance_rank;
  err->message[0] = '\0';
  return s->table->layout(s->self, &request, out, err);
}

static opipe_status order(const subject *s, uint32_t mode, const opipe_layout *layout, uint32_t m,
                          recorded *out, opipe_error *err) {
  static uint64_t ones[INSTANCES_MOST], zeros[INSTANCES_MOST], free_bytes[INSTANCES_MOST];
  for (uint32_t i = 0; i < INSTANCES_MOST; ++i) {
    ones[i] = 1000;
    free_bytes[i] = UINT64_MAX;
  }
  const uint64_t *backward = mode == OPIPE_MODE_TRAIN ? ones : zeros;
  const opipe_schedule_problem problem = {
      (uint32_t)OPIPE_END(opipe_schedule_problem, rank_memory_bytes),
      mode,
      m,
      s->n_settings,
      s->settings,
      layout,
      ones,
      backward,
      backward,
      zeros,
      zeros,
      free_bytes};
  out->n = 0;
  err->message[0] = '\0';
  return s->table->plan(s->self, &problem, record, out, err);
}

static void check_options(const subject *s) {
  const opipe_schedule_option *options = NULL;
  uint32_t n = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  conf_case("options");
  if (!conf_ok(s->table->options(s->self, &options, &n, &err), &err, "options"))
    return;
  for (uint32_t i = 0; i < n; ++i) {
    conf_check(options[i].key != NULL && options[i].help != NULL, "option %u lacks a key or help",
               i);
    conf_check(options[i].type != 0 && strchr("isxt", (int)options[i].type) != NULL,
               "option %u: type %u", i, options[i].type);
    conf_check(options[i].type != 's' || options[i].choices != NULL, "option %u has no choices", i);
    conf_check(options[i].min <= options[i].max, "option %u: [%g, %g]", i, options[i].min,
               options[i].max);
  }
}

static void check_layout(const opipe_layout *l, const uint32_t *rank, uint32_t ranks,
                         uint32_t stages) {
  conf_check(l->n_ranks > 0 && l->n_stages > 0 && l->n_replicas > 0,
             "%u ranks, %u stages, %u replicas", l->n_ranks, l->n_stages, l->n_replicas);
  conf_check(ranks == 0 || l->n_ranks == ranks, "%u ranks were asked for, %u are laid out", ranks,
             l->n_ranks);
  conf_check(stages == 0 || l->n_stages == stages, "%u stages were asked for, %u are laid out",
             stages, l->n_stages);
  for (uint32_t i = 0; i < l->n_stages * l->n_replicas; ++i) {
    conf_check(rank[i] < l->n_ranks, "stage %u is on rank %u of %u", i / l->n_replicas, rank[i],
               l->n_ranks);
  }
}

/* ---- is the order complete, and can it be executed? ---- */

static uint32_t slices_of(const opipe_layout *l) {
  return l->n_slices == 0 ? 1 : l->n_slices;
}
static uint32_t parts_of(const opipe_layout *l) {
  return l->n_parts == 0 ? 1 : l->n_parts;
}

/* Where the work of a (stage, micro-batch, slice, part) in a pass (F, I, W) is marked. */
static size_t place(const opipe_layout *l, uint32_t m, const opipe_action *a, uint32_t pass,
                    uint32_t part) {
  const size_t unit =
      (((size_t)a->stage * m + a->microbatch) * slices_of(l) + a->slice) * parts_of(l) + part;
  return unit * 3 + pass;
}

static bool in_range(const opipe_layout *l, const uint32_t *rank, uint32_t m,
                     const opipe_action *a) {
  return a->rank < l->n_ranks && a->stage < l->n_stages && a->replica < l->n_replicas &&
         a->microbatch < m && a->slice < slices_of(l) && a->part < parts_of(l) &&
         a->reserved == 0 && rank[a->stage * l->n_replicas + a->replica] == a->rank;
}

static bool mark(const opipe_layout *l, uint32_t m, const opipe_action *a, uint8_t *done) {
  const bool forward = a->pass == OPIPE_PASS_FORWARD;
  const uint32_t first = a->pass == OPIPE_PASS_BACKWARD_WEIGHT ? 2 : forward ? 0 : 1;
  const uint32_t last = a->pass == OPIPE_PASS_BACKWARD ? 2 : first;
  const uint32_t from = forward ? 0 : a->part,
                 to = forward ? parts_of(l) - 1 : a->part; /* a forward makes all parts */
  for (uint32_t pass = first; pass <= last; ++pass) {
    for (uint32_t part = from; part <= to; ++part) {
      uint8_t *at = &done[place(l, m, a, pass, part)];
      if (*at != 0)
        return false;
      *at = 1;
    }
  }
  return true;
}

static bool ready(const opipe_layout *l, uint32_t m, const opipe_action *a, const uint8_t *done) {
  opipe_action other = *a;
  if (a->pass == OPIPE_PASS_FORWARD) {
    if (a->slice > 0) {
      other.slice = (uint16_t)(a->slice - 1);
      if (!done[place(l, m, &other, 0, 0)])
        return false;
      other.slice = a->slice;
    }
    if (a->stage == 0)
      return true;
    other.stage = a->stage - 1;
    return done[place(l, m, &other, 0, 0)] != 0;
  }
  if (a->pass == OPIPE_PASS_BACKWARD_WEIGHT)
    return done[place(l, m, a, 1, a->part)] != 0;
  if (!done[place(l, m, a, 0, a->part)])
    return false;
  if (a->slice + 1u < slices_of(l)) { /* a slice's backward follows that of later slices */
    other.slice = (uint16_t)(a->slice + 1);
    if (!done[place(l, m, &other, 1, a->part)])
      return false;
    other.slice = a->slice;
  }
  if (a->stage + 1 == l->n_stages)
    return true;
  other.stage = a->stage + 1;
  return done[place(l, m, &other, 1, a->part)] != 0;
}

static void check_flags(uint32_t mode, const recorded *r) {
  for (uint32_t i = 0; i < r->n; ++i) {
    const opipe_action *a = &r->actions[i];
    const bool back = a->pass == OPIPE_PASS_BACKWARD || a->pass == OPIPE_PASS_BACKWARD_INPUT;
    const uint32_t known = (back ? (uint32_t)OPIPE_ACTION_RECOMPUTE : 0u) |
                           (mode == OPIPE_MODE_TRAIN ? (uint32_t)OPIPE_ACTION_NEXT_STEP : 0u) |
                           OPIPE_ACTION_OVERLAP_NEXT;
    conf_check((a->flags & ~known) == 0, "record %u: pass %u has flags 0x%x, known are 0x%x", i,
               a->pass, a->flags, known);
  }
}

/* Records that reach into the next mini-batch are the body of a stream: *out gets the prologue, the
 * body of three mini-batches and the epilogue, their micro-batches counted through. Returns the
 * number of mini-batches; 1 and a copy when nothing reaches over. */
static uint32_t unroll(const opipe_layout *l, uint32_t m, const recorded *r, recorded *out) {
  uint32_t steps = 1;
  for (uint32_t i = 0; i < r->n; ++i)
    steps = (r->actions[i].flags & OPIPE_ACTION_NEXT_STEP) != 0 ? 3 : steps;
  if (steps != 1) {
    conf_check(l->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED,
               "one version of the weights, but records of the next mini-batch");
  }
  out->n = 0;
  for (uint32_t round = steps == 1 ? 1 : 0; round <= steps; ++round) {
    for (uint32_t i = 0; i < r->n; ++i) {
      opipe_action a = r->actions[i];
      const bool next = (a.flags & OPIPE_ACTION_NEXT_STEP) != 0;
      if ((round == 0 && !next) || (round == steps && next))
        continue;
      a.flags &= ~(uint32_t)OPIPE_ACTION_NEXT_STEP;
      a.microbatch += m * (next ? round : round - 1);
      if (next && a.pass != OPIPE_PASS_FORWARD)
        conf_check(false, "record %u: only a forward runs ahead", i);
      if (out->n == ACTIONS_MOST)
        conf_check(false, "more than %d records", (int)ACTIONS_MOST);
      if (out->n < ACTIONS_MOST)
        out->actions[out->n++] = a;
    }
  }
  return steps;
}

/* Runs of rank p's list what can run, up to the first pass that must wait. Returns how many did. */
static uint32_t run_rank(const opipe_layout *l, uint32_t p, uint32_t m, const recorded *r,
                         uint8_t *ran, uint8_t *done) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < r->n; ++i) {
    const opipe_action *a = &r->actions[i];
    if (ran[i] || a->rank != p)
      continue;
    if (a->pass != OPIPE_PASS_UPDATE) {
      if (!ready(l, m, a, done))
        break;
      if (!mark(l, m, a, done)) {
        conf_check(false, "record %u: stage %u, micro-batch %u, pass %u twice", i, a->stage,
                   a->microbatch, a->pass);
      }
    }
    ran[i] = 1;
    ++n;
  }
  return n;
}

/* Every rank follows its list; stops when nobody can go on. */
static void execute(const opipe_layout *l, const uint32_t *rank, uint32_t mode, uint32_t m,
                    const recorded *r) {
  const size_t n = (size_t)l->n_stages * m * slices_of(l) * parts_of(l) * 3;
  uint8_t *done = calloc(n, 1), *ran = calloc(r->n + 1u, 1);
  uint32_t left = r->n;
  bool sound = done != NULL && ran != NULL;
  for (uint32_t i = 0; i < r->n && sound; ++i) {
    if (r->actions[i].pass == OPIPE_PASS_UPDATE)
      continue;
    sound = conf_check(in_range(l, rank, m, &r->actions[i]),
                       "record %u is out of range or on the wrong rank", i);
  }
  for (bool moved = sound; moved;) {
    moved = false;
    for (uint32_t p = 0; p < l->n_ranks; ++p) {
      const uint32_t n_ran = run_rank(l, p, m, r, ran, done);
      left -= n_ran;
      moved = moved || n_ran > 0;
    }
  }
  if (sound) {
    conf_check(left == 0, "%u of %u records can never run", left, r->n);
    size_t missing = 0;
    for (size_t i = 0; i < n; ++i)
      missing += (mode == OPIPE_MODE_TRAIN || i % 3 == 0) && done[i] == 0;
    conf_check(missing == 0, "%zu passes are never computed", missing);
  }
  free(done);
  free(ran);
}

static void check_case(const subject *s, uint32_t mode, uint32_t ranks, uint32_t stages, uint32_t m,
                       uint32_t *io_accepted) {
  static uint32_t rank[INSTANCES_MOST], again[INSTANCES_MOST];
  static recorded first, second, whole;
  static char name[128];
  opipe_layout l, twin;
  opipe_error err = OPIPE_ERROR_INIT;
  (void)snprintf(name, sizeof(name), "%s, %u ranks, %u stages, %u micro-batches",
                 mode == OPIPE_MODE_TRAIN ? "train" : "forward", ranks, stages, m);
  conf_case(name);
  const opipe_status status = lay_out(s, mode, ranks, stages, m, rank, INSTANCES_MOST, &l, &err);
  if (status < 0) { /* a constraint: must be said */
    conf_check(err.message[0] != '\0', "layout fails with %d and no message", (int)status);
    conf_check(status == OPIPE_E_INVALID || status == OPIPE_E_UNSUPPORTED,
               "layout fails with %d (%s)", (int)status, err.message);
    return;
  }
  ++*io_accepted;
  check_layout(&l, rank, ranks, stages);
  conf_ok(lay_out(s, mode, ranks, stages, m, again, INSTANCES_MOST, &twin, &err), &err,
          "layout, again");
  conf_check(twin.n_stages == l.n_stages && twin.n_ranks == l.n_ranks &&
                 memcmp(rank, again, l.n_stages * l.n_replicas * sizeof(*rank)) == 0,
             "layout is not pure");
  if (l.n_stages * l.n_replicas > 1) {
    conf_error(lay_out(s, mode, ranks, stages, m, again, 1, &twin, &err), OPIPE_E_LIMIT, &err,
               "layout without room");
    conf_check(twin.n_stages == l.n_stages && twin.n_replicas == l.n_replicas,
               "layout without room does not say what it needs");
  }
  l.instance_rank = rank;
  first.fail_after = second.fail_after = 0;
  if (!conf_ok(order(s, mode, &l, m, &first, &err), &err, "plan"))
    return;
  conf_ok(order(s, mode, &l, m, &second, &err), &err, "plan, again");
  conf_check(first.n == second.n &&
                 memcmp(first.actions, second.actions, first.n * sizeof(opipe_action)) == 0,
             "plan is not pure");
  check_flags(mode, &first);
  const uint32_t steps = unroll(&l, m, &first, &whole);
  execute(&l, rank, mode, m * steps, &whole);
  if (first.n > 1) {
    second.fail_after = first.n / 2;
    conf_check(order(s, mode, &l, m, &second, &err) == OPIPE_E_CANCELLED,
               "plan does not hand on its sink's error");
  }
}

static uint32_t check_mode(const subject *s, uint32_t mode) {
  uint32_t accepted = 0;
  for (uint32_t n = 1; n <= RANKS_MOST; ++n) {
    for (uint32_t m = 1; m <= MICROBATCHES_MOST; ++m) {
      check_case(s, mode, n, 0, m, &accepted);
      check_case(s, mode, 0, n, m, &accepted);
      check_case(s, mode, n, 2 * n, m, &accepted);
    }
  }
  return accepted;
}

int main(int argc, char **argv) {
  subject s;
  static char text[SETTINGS_MOST][128];
  if (argc < 2 || argc > 2 + SETTINGS_MOST) {
    (void)fprintf(stderr, "usage: %s PATH.so [key=value ...]\n", argv[0]);
    return 2;
  }
  static const conf_table rule = {OPIPE_SCHEDULE_ID, OPIPE_END(opipe_schedule, plan), 0, 0};
  conf_plugin plugin = conf_open(argv[1], OPIPE_KIND_SCHEDULE, &rule);
  memset(&s, 0, sizeof(s));
  s.table = plugin.table;
  s.self = plugin.self;
  for (int i = 2; i < argc; ++i) {
    (void)snprintf(text[i - 2], sizeof(text[0]), "%s", argv[i]);
    char *equals = strchr(text[i - 2], '=');
    if (equals == NULL)
      return 2;
    *equals = '\0';
    s.settings[s.n_settings++] = (opipe_schedule_setting){text[i - 2], equals + 1};
  }
  check_options(&s);
  const uint32_t forward = check_mode(&s, OPIPE_MODE_FORWARD),
                 train = check_mode(&s, OPIPE_MODE_TRAIN);
  conf_case("modes");
  conf_check(forward > 0, "no forward case was accepted: every schedule has a forward form");
  if (train == 0)
    conf_skip("no training case was accepted");
  conf_close(&plugin);
  return conf_finish();
}
