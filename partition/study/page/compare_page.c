/* SPDX-License-Identifier: Apache-2.0 */
/* A plan's file holds its records as lines of an order: with a header in front they are read as an
 * order, timed by the file's stage times. */
#include "partition/study/page/compare_page.h"

#include <string.h>

#include "loader/base/json.h"
#include "partition/schedule/order.h"
#include "partition/study/layers/cuts.h"
#include "partition/study/page/play_page.h"

typedef struct side {
  const opi_plan_text *text;
  json_t *root;
  opi_arena arena;
  opi_order *order; /* NULL: a strategy */
  opi_costs costs;
  opi_plan_cuts cuts; /* the order's edges, if known */
  opi_page_kept kept;
  bool has_kept; /* the file has bytes of stages and ranks */
} side;

/* ---- the order ---- */

/* A count that a plan of one replica leaves out is 1, or follows from the stages' ranks. */
static json_int_t count_of(const json_t *training, const json_t *replicas, const char *name) {
  const json_t *value = json_object_get(training == NULL ? replicas : training, name);
  return json_is_integer(value) ? json_integer_value(value) : 1;
}

static void put_list(opi_text *to, const char *name, const json_t *values) {
  size_t i = 0;
  json_t *value = NULL;
  if (json_array_size(values) == 0)
    return;
  opi_text_printf(to, "#%s=", name);
  json_array_foreach(values, i, value) {
    const json_int_t n = json_integer_value(value);
    opi_text_puts(to, i == 0 ? "" : ",");
    if (n < 0 || n >= OPIPE_NONE)
      opi_text_puts(to, "-");
    else
      opi_text_printf(to, "%u", (uint32_t)n);
  }
  opi_text_puts(to, "\n");
}

/* Writes the ranks of the stages of a plan without replicas. */
static void put_places(opi_text *to, const json_t *stages) {
  size_t i = 0;
  json_t *stage = NULL;
  opi_text_puts(to, "#place=");
  json_array_foreach(stages, i, stage) {
    opi_text_printf(to, "%s%u", i == 0 ? "" : ",",
                    (uint32_t)json_integer_value(json_object_get(stage, "rank")));
  }
  opi_text_puts(to, "\n");
}

/* Stages that read from each other; a chain if the file does not say. */
static void put_edges(opi_text *to, const opi_plan_cuts *cuts) {
  if (!cuts->known)
    return;
  opi_text_puts(to, "#edges=");
  for (uint32_t i = 0; i < cuts->n; ++i) {
    opi_text_printf(to, "%s%u>%u", i == 0 ? "" : ",", cuts->cuts[i].src_stage,
                    cuts->cuts[i].dst_stage);
  }
  opi_text_puts(to, "\n");
}

static void put_order(const side *s, opi_text *to) {
  static const char *const syncs[] = {"end", "eager", "eager-opt"};
  const json_t *root = s->root, *training = json_object_get(root, "training");
  const json_t *replicas = json_object_get(root, "replicas"),
               *slices = json_object_get(root, "slices");
  const json_t *stages = json_object_get(root, "stages"), *lines = json_object_get(root, "actions");
  const json_t *ranks = json_object_get(training == NULL ? replicas : training, "ranks");
  const json_int_t sync = training == NULL ? 0 : count_of(training, NULL, "sync");
  const json_int_t n_slices = count_of(training, slices, "slices");
  size_t i = 0;
  json_t *line = NULL;
  opi_text_printf(
      to,
      "#onnx-pipe-schedule v1\n#ranks=%zu stages=%zu replicas=%u microbatches=%u "
      "slices=%u parts=%u mode=%s versions=%s sync=%s\n",
      json_array_size(lines), json_array_size(stages),
      (uint32_t)count_of(training, replicas, "replicas"),
      (uint32_t)json_integer_value(json_object_get(root, "microbatches")), (uint32_t)n_slices,
      (uint32_t)(training == NULL ? 1 : count_of(training, NULL, "parts")),
      training == NULL ? "forward" : "train",
      training != NULL && json_integer_value(json_object_get(training, "versions")) != 0 ? "double"
                                                                                         : "one",
      syncs[sync < 0 || sync > 2 ? 0 : sync]);
  if (ranks == NULL)
    put_places(to, stages);
  else
    put_list(to, "place", ranks);
  put_edges(to, &s->cuts);
  put_list(to, "shares", json_object_get(training == NULL ? replicas : training, "shares"));
  put_list(to, "lengths", json_object_get(training == NULL ? slices : training, "slice_lengths"));
  json_array_foreach(lines, i, line) {
    const char *actions = json_string_value(line);
    opi_text_printf(to, "rank %zu: %s\n", i, actions == NULL ? "" : actions);
  }
}

/* ---- its times ---- */

static opipe_status read_times(side *s, const json_t *values, const char *member, const char *name,
                               uint32_t n, const double **out, opipe_error *err) {
  double *times = OPI_ARENA_ARRAY(&s->arena, double, (size_t)n + 1);
  if (times == NULL)
    return opi_fail_nomem(err, n * sizeof *times, "a page");
  for (uint32_t i = 0; i < n; ++i) {
    const json_t *value = json_array_get(values, i);
    if (member != NULL)
      value = json_object_get(value, member);
    if (value != NULL)
      OPI_TRY(opi_json_time(value, s->text->name, name, &times[i], err));
  }
  *out = times;
  return OPIPE_OK;
}

/* Reads messages; between two stages the largest arrives last. Files without bytes of messages give
 * the link's latency alone. */
static opipe_status read_messages(side *s, const json_t *link, opipe_error *err) {
  const json_t *latency = json_object_get(link, "latency_ns");
  const double rate = json_number_value(json_object_get(link, "bytes_per_ns"));
  if (latency != NULL)
    OPI_TRY(opi_json_time(latency, s->text->name, "latency_ns", &s->costs.comm, err));
  if (!s->cuts.known || !(rate > 0))
    return OPIPE_OK;
  double *comm = OPI_ARENA_ARRAY(&s->arena, double, (size_t)s->cuts.n + 1);
  if (comm == NULL)
    return opi_fail_nomem(err, s->cuts.n * sizeof *comm, "a page");
  for (uint32_t i = 0; i < s->cuts.n; ++i)
    comm[i] = s->costs.comm + (double)s->cuts.cuts[i].message_bytes / rate;
  s->costs.edge_comm = comm;
  return OPIPE_OK;
}

static opipe_status read_costs(side *s, opipe_error *err) {
  const uint32_t n = s->order->problem.n_stages;
  const json_t *training = json_object_get(s->root, "training");
  const json_t *link = json_object_get(s->root, "link");
  s->costs = (opi_costs){.n_stages = n};
  OPI_TRY(read_times(s, json_object_get(s->root, "stages"), "time_ns", "time_ns", n,
                     &s->costs.stage_forward, err));
  OPI_TRY(read_times(s, json_object_get(training, "input_ns"), NULL, "input_ns", n,
                     &s->costs.stage_input, err));
  OPI_TRY(read_times(s, json_object_get(training, "weight_ns"), NULL, "weight_ns", n,
                     &s->costs.stage_weight, err));
  return read_messages(s, link, err);
}

/* ---- its bytes ---- */

/* Reads a number of every element; false: one has none. */
static bool read_numbers(const json_t *array, const char *name, uint32_t n, double *out) {
  bool all = json_array_size(array) == n;
  for (uint32_t i = 0; all && i < n; ++i) {
    const json_t *value = json_object_get(json_array_get(array, i), name);
    all = json_is_number(value) && json_number_value(value) >= 0;
    out[i] = all ? json_number_value(value) : 0;
  }
  return all;
}

/* Bytes of a rank that are not kept from forward to backward are always there. A plan for inference
 * keeps nothing else. */
static opipe_status read_kept(side *s, opipe_error *err) {
  const uint32_t n = s->order->problem.n_stages, n_ranks = s->order->problem.n_ranks;
  const json_t *memory = json_object_get(s->root, "memory");
  const bool trains = json_object_get(s->root, "training") != NULL;
  double *stash = OPI_ARENA_ARRAY(&s->arena, double, (size_t)n + 1);
  double *fixed = OPI_ARENA_ARRAY(&s->arena, double, (size_t)n_ranks + 1);
  double *cap = OPI_ARENA_ARRAY(&s->arena, double, (size_t)n_ranks + 1);
  double *stashes = OPI_ARENA_ARRAY(&s->arena, double, (size_t)n_ranks + 1);
  if (stash == NULL || fixed == NULL || cap == NULL || stashes == NULL)
    return opi_fail_nomem(err, n * sizeof *stash, "a page");
  s->has_kept = read_numbers(memory, "total_bytes", n_ranks, fixed);
  if (trains) {
    s->has_kept = s->has_kept &&
                  read_numbers(json_object_get(s->root, "stages"), "stash_bytes", n, stash) &&
                  read_numbers(memory, "stash_bytes", n_ranks, stashes);
  }
  for (uint32_t r = 0; s->has_kept && r < n_ranks; ++r) {
    fixed[r] = fixed[r] > stashes[r] ? fixed[r] - stashes[r] : 0;
    cap[r] = json_number_value(json_object_get(json_array_get(memory, r), "cap_bytes"));
  }
  s->kept = (opi_page_kept){.stash = stash, .fixed = fixed, .cap = cap};
  return OPIPE_OK;
}

/* ---- both ---- */

static opipe_status read_side(side *s, opipe_error *err) {
  opi_text lines;
  opi_plan_cut *cuts = NULL;
  OPI_TRY(opi_json_parse(s->text->json, s->text->n_bytes, s->text->name, &s->root, err));
  if (json_object_get(s->root, "actions") == NULL)
    return OPIPE_OK;
  const size_t n_stages = json_array_size(json_object_get(s->root, "stages"));
  OPI_TRY(opi_plan_cuts_read(s->root, s->text->name, (uint32_t)n_stages, &s->arena, &cuts,
                             &s->cuts.n, &s->cuts.known, err));
  s->cuts.cuts = cuts;
  opi_text_init(&lines, s->arena.allocator);
  put_order(s, &lines);
  const opipe_status status = lines.failed ? opi_fail_nomem(err, lines.room, "a page")
                                           : opi_order_read(lines.data, lines.n, OPI_DIALECT_OPIPE,
                                                            s->arena.allocator, &s->order, err);
  opi_text_release(&lines);
  if (status < 0)
    return opi_error_prefix(err, "%.80s: ", s->text->name);
  OPI_TRY(read_costs(s, err));
  return read_kept(s, err);
}

static opipe_status add_side(opi_page *page, side *s, opipe_error *err) {
  const opi_problem *p = s->order == NULL ? NULL : &s->order->problem;
  if (p == NULL)
    return OPIPE_OK;
  opi_simulation result = {.peak_stash = OPI_ARENA_ARRAY(&s->arena, double, p->n_ranks)};
  opi_text figures;
  if (result.peak_stash == NULL)
    return opi_fail_nomem(err, p->n_ranks * sizeof(double), "a page");
  OPI_TRY(opi_simulate_order(p, s->order->list, &s->costs, s->arena.allocator, &result, err));
  opi_text_init(&figures, s->arena.allocator);
  opi_text_puts(&figures, "{\"step_ns\": ");
  opi_json_double(&figures, result.makespan);
  opi_text_puts(&figures, ", \"bubble\": ");
  opi_json_double(&figures, result.bubble);
  opi_text_puts(&figures, "}");
  const opipe_status status =
      figures.failed ? opi_fail_nomem(err, figures.room, "a page")
                     : opi_page_add_order(page, s->text->name, p, s->order->list, &s->costs,
                                          s->has_kept ? &s->kept : NULL, figures.data,
                                          result.makespan, &s->arena, err);
  opi_text_release(&figures);
  return status;
}

static opipe_status write_sides(side sides[2], const char *compared, opi_page *page,
                                opipe_write_fn write, void *ctx, opipe_error *err) {
  for (uint32_t i = 0; i < 2; ++i) {
    OPI_TRY(read_side(&sides[i], err));
    OPI_TRY(add_side(page, &sides[i], err));
  }
  opi_page_add_member(page, "compared", compared);
  return opi_page_write(page, write, ctx, err);
}

opipe_status opi_plans_page(const opi_plan_text texts[2], const opipe_allocator *allocator,
                            opipe_write_fn write, void *ctx, opipe_error *err) {
  side sides[2] = {{.text = &texts[0]}, {.text = &texts[1]}};
  opi_text compared;
  opi_page page;
  for (uint32_t i = 0; i < 2; ++i)
    opi_arena_init(&sides[i].arena, allocator, 0);
  opi_text_init(&compared, allocator);
  opi_page_begin(&page, allocator, "", "ns");
  opipe_status status = opi_plans_compare(texts, true, allocator, &compared, err);
  if (status == OPIPE_OK) {
    status = compared.failed ? opi_fail_nomem(err, compared.room, "a page")
                             : write_sides(sides, compared.data, &page, write, ctx, err);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    opi_order_free(sides[i].order);
    json_decref(sides[i].root);
    opi_arena_release(&sides[i].arena);
  }
  opi_text_release(&compared);
  opi_page_release(&page);
  return status;
}
