/* SPDX-License-Identifier: Apache-2.0 */
/* TeraPipe's planner (Li et al., ICML'21, section 3). The sequences of a batch are cut along their
 * tokens; rows go together if that is faster (all groups equal and cut alike, which is what
 * schedules can express), and the slices follow each other through K stages: T = sum t_i + (K - 1)
 * max t_j over all depths K and tensor widths that fit; slices.c has the dynamic programming. Times
 * are of forward and backward together, with messages both ways, as in the authors' program.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "loader/base/sizes.h"
#include "partition/study/planners/strategy.h"

enum { UNIT_TOKENS = 8, UNITS_WANTED = 128, TOGETHER_MOST = 16 };
static const double step_share =
    1e-3; /* distance between bounds, as a share of the slowest slice */

/* ---- times of slices ---- */

/* A stage's layers on a tensor group: opi_layers_slices_sum, and the times of its sums. */
typedef struct curve {
  double alone_ns[OPI_TOKEN_COUNTS_MOST];
  double context_ns;
  double sum_ns, sum_token_ns; /* per slice, and per token of all its rows */
} curve;

static void make_curve(const opi_slice_question *q, uint32_t stage, curve *out) {
  enum { SUMS_OF_LAYER = 2, WAYS = 2 };
  const opi_layers *layers = q->planning->layers;
  const opi_reach *inside = &q->machine->inside;
  double width_bytes = 0, n_sums = 0;
  opi_layers_slices_sum(layers, q->ends[stage], q->ends[stage + 1], q->width, out->alone_ns,
                        &out->context_ns);
  for (uint32_t i = q->ends[stage]; i < q->ends[stage + 1] && q->width > 1; ++i) {
    const opi_layer l = opi_layers_at(layers, i, 1);
    width_bytes += (double)l.width_bytes;
    n_sums += l.width_bytes > 0 ? SUMS_OF_LAYER * WAYS : 0;
  }
  const double rounds = 2.0 * (q->width - 1); /* of a ring, each with 1 / width of the whole */
  out->sum_ns = n_sums * rounds * inside->sum_latency_ns;
  out->sum_token_ns = WAYS * opi_bytes_ns(rounds / q->width * width_bytes / layers->tokens,
                                          inside->sum_bytes_per_ns);
}

static double compute_ns(const opi_slice_question *q, const curve *c, uint32_t rows,
                         uint32_t length, uint32_t before) {
  return opi_layers_alone_ns(q->planning->layers, c->alone_ns, (double)rows * length) +
         rows * c->context_ns * length * (before + length / 2.0);
}

/* Without messages. */
static double slice_ns(const opi_slice_question *q, const curve *c, uint32_t rows,
                       uint32_t length) {
  return compute_ns(q, c, rows, length, 0) + c->sum_ns + c->sum_token_ns * rows * length;
}

double opi_terapipe_compute_ns(const opi_slice_question *q, uint32_t stage, uint32_t rows,
                               uint32_t length, uint32_t before) {
  curve c;
  make_curve(q, stage, &c);
  return compute_ns(q, &c, rows, length, before);
}

/* Time of a slice's messages to the next stage and back. */
static double message_ns(const opi_slice_question *q, uint32_t stage, uint32_t rows,
                         uint32_t length) {
  const opi_layers *layers = q->planning->layers;
  const opi_machine *m = q->machine;
  if (q->n_stages < 2)
    return 0;
  const uint32_t cut = q->ends[stage + 1 == q->n_stages ? stage : stage + 1] - 1;
  const opi_reach *reach = q->width * q->n_stages <= m->per_node ? &m->inside : &m->across;
  const double n_bytes =
      (double)opi_layers_at(layers, cut, rows).cut_bytes * length / layers->tokens;
  return 2 * (reach->latency_ns + opi_bytes_ns(n_bytes, reach->bytes_per_ns));
}

static uint32_t slowest_stage(const opi_slice_question *q) {
  const uint32_t tokens = q->planning->layers->tokens;
  uint32_t slowest = 0;
  double most = 0;
  for (uint32_t s = 0; s < q->n_stages; ++s) {
    curve c;
    make_curve(q, s, &c);
    const double ns = slice_ns(q, &c, 1, tokens);
    slowest = ns > most ? s : slowest;
    most = ns > most ? ns : most;
  }
  return slowest;
}

/* Times of all lengths that cuts can produce. */
static opipe_status fill_times(const opi_slice_question *q, uint32_t rows, opi_arena *arena,
                               opi_slice_times *out, opipe_error *err) {
  const uint32_t tokens = q->planning->layers->tokens, s = slowest_stage(q);
  double *alone = OPI_ARENA_ARRAY(arena, double, (size_t)tokens + 1);
  curve c;
  if (alone == NULL)
    return opi_fail_nomem(err, tokens * sizeof *alone, "times of slices");
  make_curve(q, s, &c);
  for (uint32_t l = 1; l <= tokens; ++l) {
    if (l % q->unit == 0 || (tokens - l) % q->unit == 0)
      alone[l] = slice_ns(q, &c, rows, l) + message_ns(q, s, rows, l);
  }
  *out = (opi_slice_times){.alone = alone};
  out->context.at[3] = rows * c.context_ns;
  return OPIPE_OK;
}

/* Slices all rows in groups of `together`, cut alike. */
static opipe_status slice_groups(const opi_slice_question *q, uint32_t together,
                                 opi_slicing *out_slicing, opipe_error *err) {
  const opipe_allocator *allocator = q->planning->allocator;
  const uint32_t tokens = q->planning->layers->tokens;
  opi_slice_times known;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  const opi_slice_times **times = OPI_ARENA_ARRAY(&arena, const opi_slice_times *, q->rows);
  opipe_status status = times == NULL ? opi_fail_nomem(err, q->rows * sizeof *times, "slices")
                                      : fill_times(q, together, &arena, &known, err);
  if (status == OPIPE_OK) {
    times[together - 1] = &known;
    const opi_slice_problem problem = {.n_tokens = tokens,
                                       .unit = q->unit,
                                       .n_stages = q->n_stages,
                                       .n_rows = q->rows,
                                       .times = times,
                                       .step = known.alone[tokens] * step_share};
    status = q->n_even > 0 ? opi_slices_even(&problem, q->n_even, allocator, out_slicing, err)
                           : opi_slices_plan(&problem, allocator, out_slicing, err);
  }
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_terapipe_slices(const opi_slice_question *q, opi_slicing *out, opipe_error *err) {
  *out = (opi_slicing){.groups = NULL};
  for (uint32_t r = 1; r <= q->rows && r <= q->together; r *= 2) {
    opi_slicing next = {.groups = NULL};
    if (q->rows % r != 0 || (q->n_even > 0 && r > 1))
      continue;
    const opipe_status status = slice_groups(q, r, &next, err);
    if (status < 0) {
      opi_slicing_free(out);
      return status;
    }
    if (out->groups == NULL || next.total < out->total) {
      opi_slicing_free(out);
      *out = next;
    } else {
      opi_slicing_free(&next);
    }
  }
  return OPIPE_OK;
}

/* ---- the planner ---- */

/* All slices of a mini-batch go forward before the first comes back, so all rows are kept. */
static double stage_bytes(const opi_slice_question *q, uint32_t s) {
  const opi_layer sum = opi_layers_sum(q->planning->layers, q->ends[s], q->ends[s + 1], 1);
  const double share = 1 - sum.width_share + sum.width_share / q->width;
  const double params = (double)sum.param_bytes / (sum.width_share > 0 ? q->width : 1);
  return params * q->planning->state_bytes + q->rows * (double)sum.stash_bytes * share;
}

static bool fits(const opi_slice_question *q) {
  for (uint32_t s = 0; s < q->n_stages; ++s) {
    if (stage_bytes(q, s) > (double)q->machine->memory_bytes)
      return false;
  }
  return true;
}

/* Time to sum gradients over all copies; the devices of a tensor group do so concurrently. */
static double sums_ns(const opi_slice_question *q, uint32_t copies) {
  const opi_reach *reach = q->machine->n_nodes == 1 ? &q->machine->inside : &q->machine->across;
  const double shared = reach->port_bytes_per_ns / q->width;
  const double rate =
      shared > 0 && shared < reach->sum_bytes_per_ns ? shared : reach->sum_bytes_per_ns;
  double most = 0;
  for (uint32_t s = 0; s < q->n_stages && copies > 1; ++s) {
    const opi_layer sum = opi_layers_sum(q->planning->layers, q->ends[s], q->ends[s + 1], 1);
    const double params = (double)sum.param_bytes / (sum.width_share > 0 ? q->width : 1);
    most = fmax(most, opi_bytes_ns(2.0 * (copies - 1) / copies * params, rate));
  }
  return most;
}

/* "terapipe:lengths=704+688+656" */
static const char *schedule_of(const opi_slicing *slicing, opi_arena *arena) {
  const opi_slice_group *first = &slicing->groups[0];
  opi_text text;
  opi_text_init(&text, arena->allocator);
  for (uint32_t k = 0; k < first->n_slices; ++k)
    opi_text_printf(&text, "%s%u", k == 0 ? "terapipe:lengths=" : "+", first->lengths[k]);
  const char *schedule = text.failed ? NULL : opi_arena_strndup(arena, text.data, text.n);
  opi_text_release(&text);
  return schedule;
}

static opipe_status copy_groups(const opi_slicing *slicing, opi_strategy *s, opipe_error *err) {
  opi_slice_group *groups = OPI_ARENA_ARRAY(&s->arena, opi_slice_group, slicing->n_groups);
  for (uint32_t g = 0; groups != NULL && g < slicing->n_groups; ++g) {
    groups[g] = slicing->groups[g];
    uint32_t *lengths = OPI_ARENA_ARRAY(&s->arena, uint32_t, groups[g].n_slices);
    if (lengths == NULL)
      return opi_fail_nomem(err, groups[g].n_slices * sizeof *lengths, "a strategy");
    memcpy(lengths, groups[g].lengths, groups[g].n_slices * sizeof *lengths);
    groups[g].lengths = lengths;
  }
  s->groups = groups;
  s->n_groups = slicing->n_groups;
  s->schedule = schedule_of(slicing, &s->arena);
  return groups == NULL || s->schedule == NULL
             ? opi_fail_nomem(err, slicing->n_groups * sizeof *groups, "a strategy")
             : OPIPE_OK;
}

/* The best so far, best first. */
typedef struct ranking {
  opi_strategy **at; /* [most] */
  uint32_t n, most;
} ranking;

/* Takes ownership of s; of equals the first one found comes first. */
static void rank(ranking *r, opi_strategy *s) {
  uint32_t at = r->n;
  if (r->n == r->most)
    opi_strategy_free(r->at[--at]);
  else
    ++r->n;
  for (; at > 0 && r->at[at - 1]->objective > s->objective; --at)
    r->at[at] = r->at[at - 1];
  r->at[at] = s;
}

static opipe_status answer(const opi_slice_question *q, uint32_t copies, const opi_slicing *slicing,
                           ranking *io_best, opipe_error *err) {
  const double ns = slicing->total + sums_ns(q, copies);
  opi_strategy *s = NULL;
  if (io_best->n == io_best->most && io_best->at[io_best->n - 1]->objective <= ns)
    return OPIPE_OK;
  OPI_TRY(opi_strategy_new("terapipe", q->n_stages, q->planning->allocator, &s, err));
  opipe_status status = copy_groups(slicing, s, err);
  for (uint32_t k = 0; k < q->n_stages && status == OPIPE_OK; ++k) {
    opi_strategy_stage *stage = &s->stages[k];
    const double bytes = stage_bytes(q, k);
    status = opi_strategy_place(s, k, k * q->width, q->width, err);
    stage->first = q->ends[k];
    stage->end = q->ends[k + 1];
    const opi_layer sum = opi_layers_sum(q->planning->layers, stage->first, stage->end, 1);
    const double all = sum.forward_ns + opi_layer_backward_ns(&sum);
    curve c;
    make_curve(q, k, &c);
    const double taken = slice_ns(q, &c, slicing->groups[0].rows, q->planning->layers->tokens);
    stage->forward_ns = all > 0 ? taken * sum.forward_ns / all : 0;
    stage->backward_ns = taken - stage->forward_ns;
    stage->memory_bytes = (uint64_t)bytes;
    s->memory_bytes = stage->memory_bytes > s->memory_bytes ? stage->memory_bytes : s->memory_bytes;
  }
  s->pipelines = copies;
  s->width = q->width;
  s->samples = slicing->groups[0].rows;
  s->microbatches = slicing->n_groups;
  s->objective = s->step_ns = ns;
  if (status < 0) {
    opi_strategy_free(s);
    return status;
  }
  rank(io_best, s);
  return OPIPE_OK;
}

/* Tries one depth and width. */
static opipe_status try_size(opi_slice_question *q, uint32_t *ends, ranking *io_best,
                             opipe_error *err) {
  const uint32_t size = q->n_stages * q->width, devices = q->machine->n_devices;
  opi_slicing slicing = {{0}};
  if (devices % size != 0 || q->planning->batch % (devices / size) != 0 ||
      !opi_even_stages(q->planning->layers, q->n_stages, ends))
    return OPIPE_OK;
  q->rows = (uint32_t)(q->planning->batch / (devices / size));
  if (!fits(q))
    return OPIPE_OK;
  OPI_TRY(opi_terapipe_slices(q, &slicing, err));
  const opipe_status status = answer(q, devices / size, &slicing, io_best, err);
  opi_slicing_free(&slicing);
  return status;
}

static uint32_t unit_of(uint32_t tokens) {
  const uint32_t wanted = (tokens - 1) / UNITS_WANTED + 1;
  return (wanted - 1) / UNIT_TOKENS * UNIT_TOKENS + UNIT_TOKENS;
}

/* Groups wider than one only if layers can be divided. */
static uint32_t widest(const opi_layers *layers, const opi_machine *machine) {
  for (uint32_t i = 0; i < layers->n_layers; ++i) {
    if (layers->at[i].width_bytes > 0)
      return machine->per_node;
  }
  return 1;
}

static opipe_status try_sizes(opi_planning *q, const opi_machine *machine, ranking *io_best,
                              opipe_error *err) {
  opi_arena arena;
  opi_arena_init(&arena, q->allocator, 0);
  uint32_t *ends = OPI_ARENA_ARRAY(&arena, uint32_t, (size_t)q->layers->n_layers + 1);
  opi_slice_question ask = {.planning = q,
                            .machine = machine,
                            .ends = ends,
                            .together = TOGETHER_MOST,
                            .unit = unit_of(q->layers->tokens)};
  opipe_status status = ends == NULL
                            ? opi_fail_nomem(err, q->layers->n_layers * sizeof *ends, "a planner")
                            : OPIPE_OK;
  for (uint32_t w = 1; w <= widest(q->layers, machine) && status == OPIPE_OK; w *= 2) {
    for (uint32_t k = 1; k <= machine->n_devices / w && k < q->layers->n_layers; ++k) {
      ask.width = w;
      ask.n_stages = k;
      status = status == OPIPE_OK ? try_size(&ask, ends, io_best, err) : status;
    }
  }
  opi_arena_release(&arena);
  return status;
}

opipe_status opi_plan_terapipe_ranked(const opi_planning *planning, uint32_t most,
                                      opi_strategy **out_strategies, uint32_t *out_n,
                                      opipe_error *err) {
  opi_planning q = *planning;
  opi_machine machine;
  ranking best = {.at = out_strategies, .most = most};
  OPI_TRY(opi_planning_check("terapipe", &q, &machine, err));
  if (q.layers->tokens == 0 || q.layers->slices.n == 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "planner 'terapipe': '%.80s' does not give the costs of token slices, as "
                    "profiles of described models with causal attention do",
                    q.layers->name);
  }
  opipe_status status = try_sizes(&q, &machine, &best, err);
  if (status == OPIPE_OK && best.n == 0) {
    status =
        opi_fail(err, OPIPE_E_LIMIT,
                 "planner 'terapipe': no depth and tensor width of %u devices fits %s "
                 "with all rows of a batch of %llu under way",
                 machine.n_devices, OPI_SIZE(machine.memory_bytes), (unsigned long long)q.batch);
  }
  for (uint32_t i = 0; status < 0 && i < best.n; ++i)
    opi_strategy_free(best.at[i]);
  *out_n = status < 0 ? 0 : best.n;
  return status;
}

opipe_status opi_plan_terapipe(const opi_planning *planning, opi_strategy **out_strategy,
                               opipe_error *err) {
  uint32_t n = 0;
  return opi_plan_terapipe_ranked(planning, 1, out_strategy, &n, err);
}
