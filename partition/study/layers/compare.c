/* SPDX-License-Identifier: Apache-2.0 */
/* Compares two files, plans or strategies, by whatever both have a name for. */
#include "partition/study/layers/compare.h"

#include <inttypes.h>
#include <string.h>

#include "loader/base/json.h"
#include "partition/plan/env.h"
#include "partition/study/layers/cuts.h"

#define STRATEGY_FORMAT "onnx-pipe strategy 1"

enum { STAGES_MOST = 4096, TEXT_ROOM = 160, NAMES = 40 };

/* Decisions, as strings, in the order in which they are printed. */
enum {
  KIND,
  MODEL,
  SAMPLES,
  PLANNER,
  SCHEDULE,
  STAGES,
  DEVICES,
  COPIES,
  REPLICAS,
  WIDTH,
  MICROBATCHES,
  SLICES,
  RECOMPUTE,
  TRANSPORT,
  FEW_BITS,
  DECISIONS
};
static const char *const decisions[DECISIONS] = {
    "kind",          "model",        "samples",   "planner",   "schedule",
    "stages",        "devices",      "copies",    "replicas",  "tensor width",
    "micro-batches", "token slices", "recompute", "transport", "weights of few bits"};

/* Costs, as numbers; below 0: unknown. */
enum { STEP, REQUEST, BOUND, FULLEST, ALL_BYTES, COSTS };
static const struct {
  const char *name, *title;
  double unit;
} costs[COSTS] = {{"step_ns", "step, or interval (ms)", 1e-6},
                  {"request_ns", "alone (ms)", 1e-6},
                  {"bound_ns", "lower bound (ms)", 1e-6},
                  {"fullest_bytes", "fullest device (MiB)", 1.0 / (1 << 20)},
                  {"all_bytes", "all devices (MiB)", 1.0 / (1 << 20)}};

typedef struct side {
  const char *name;
  json_t *root;
  bool is_plan, trains;
  uint64_t samples; /* of a mini-batch or request; 0: unknown */
  char text[DECISIONS][TEXT_ROOM];
  double cost[COSTS];
  uint32_t n_stages;
  double *stage_ns;  /* [n_stages] time of a forward */
  const char **last; /* [n_stages] the stage's last node or layer; "": unknown */
  opi_plan_cuts cuts;
} side;

static void set(side *s, uint32_t what, const char *fmt, ...) OPIPE_PRINTF(3, 4);
static void set(side *s, uint32_t what, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(s->text[what], TEXT_ROOM, fmt, args);
  va_end(args);
  (void)opi_text_clean(s->text[what], TEXT_ROOM);
}

static const char *text_of(const json_t *object, const char *name, const char *otherwise) {
  const char *text = json_string_value(json_object_get(object, name));
  return text == NULL ? otherwise : text;
}

static uint64_t count_of(const json_t *object, const char *name, uint64_t otherwise) {
  const json_t *value = json_object_get(object, name);
  return json_is_integer(value) && json_integer_value(value) >= 0
             ? (uint64_t)json_integer_value(value)
             : otherwise;
}

static double number_of(const json_t *object, const char *name) {
  const json_t *value = json_object_get(object, name);
  return json_is_number(value) && json_number_value(value) >= 0 ? json_number_value(value) : -1;
}

/* Sets the planner, and what stopped its search if it ended early; `says`: the object with that
 * member. */
static void set_planner(side *s, const char *otherwise, const json_t *says) {
  const char *stopped = text_of(says, "stopped", "no");
  const bool early = strcmp(stopped, "no") != 0;
  set(s, PLANNER, "%.60s%s%.20s", text_of(s->root, "planner", otherwise),
      early ? ", stopped by " : "", early ? stopped : "");
}

/* Writes a list of numbers as "2,1,1"; as "1" if all are 1. */
static void set_numbers(side *s, uint32_t what, const double *numbers, size_t n) {
  size_t used = 0, others = 0;
  for (size_t i = 0; i < n; ++i)
    others += numbers[i] != 1 ? 1 : 0;
  set(s, what, "1");
  for (size_t i = 0; i < n && others > 0 && used + 1 < TEXT_ROOM; ++i) {
    const int wrote =
        snprintf(s->text[what] + used, TEXT_ROOM - used, "%s%.0f", i == 0 ? "" : ",", numbers[i]);
    used += wrote < 0 ? TEXT_ROOM : (size_t)wrote;
  }
}

/* ---- plans ---- */

static void read_settings(side *s) {
  const char *key = NULL;
  json_t *value = NULL;
  size_t n = strlen(s->text[SCHEDULE]);
  json_t *settings = json_object_get(s->root, "settings");
  json_object_foreach(settings, key, value) {
    const int wrote = snprintf(s->text[SCHEDULE] + n, TEXT_ROOM - n, "%c%s=%s",
                               strchr(s->text[SCHEDULE], ':') == NULL ? ':' : ',', key,
                               json_is_string(value) ? json_string_value(value) : "");
    if (wrote < 0 || n + (size_t)wrote >= TEXT_ROOM)
      break;
    n += (size_t)wrote;
  }
  (void)opi_text_clean(s->text[SCHEDULE], TEXT_ROOM);
}

static void read_memory(side *s) {
  size_t i = 0;
  json_t *rank = NULL;
  double fullest = -1, all = 0;
  json_array_foreach(json_object_get(s->root, "memory"), i, rank) {
    const double bytes = number_of(rank, "total_bytes");
    fullest = bytes > fullest ? bytes : fullest;
    all += bytes > 0 ? bytes : 0;
  }
  s->cost[FULLEST] = fullest;
  s->cost[ALL_BYTES] = fullest < 0 ? -1 : all;
}

/* "24x4@4 1x8@0, 24 rounded": products, bits, accuracy level; how many round their rows. */
static void read_few_bits(side *s) {
  size_t i = 0, used = 0;
  json_t *form = NULL, *rank = NULL;
  uint64_t rounded = 0;
  set(s, FEW_BITS, "none");
  json_array_foreach(json_object_get(s->root, "few_bits"), i, form) {
    const int wrote =
        snprintf(s->text[FEW_BITS] + used, TEXT_ROOM - used, "%s%" PRIu64 "x%" PRIu64 "@%" PRId64,
                 i == 0 ? "" : " ", count_of(form, "products", 0), count_of(form, "bits", 0),
                 (int64_t)json_integer_value(json_object_get(form, "accuracy_level")));
    used += wrote < 0 ? TEXT_ROOM : (size_t)wrote;
    if (used + 1 >= TEXT_ROOM)
      return;
  }
  json_array_foreach(json_object_get(s->root, "memory"), i, rank) rounded +=
      count_of(rank, "rounded_products", 0);
  if (used > 0)
    (void)snprintf(s->text[FEW_BITS] + used, TEXT_ROOM - used, ", %" PRIu64 " rounded", rounded);
}

/* The model and the number of samples: "fingerprint, seq=16", without the batch. */
static void read_work(side *s) {
  const char *batch = text_of(s->root, "batch_dim", ""), *key = NULL;
  json_t *value = NULL, *dims = json_object_get(s->root, "dims");
  set(s, MODEL, "%.12s", text_of(s->root, "fingerprint", "?"));
  size_t used = strlen(s->text[MODEL]);
  json_object_foreach(dims, key, value) {
    if (strcmp(key, batch) == 0 || used >= TEXT_ROOM || !json_is_integer(value))
      continue;
    const int wrote = snprintf(s->text[MODEL] + used, TEXT_ROOM - used, ", %.40s=%" PRId64, key,
                               (int64_t)json_integer_value(value));
    used += wrote < 0 ? TEXT_ROOM : (size_t)wrote;
  }
  (void)opi_text_clean(s->text[MODEL], TEXT_ROOM);
  s->samples = count_of(s->root, "batch_rows", 0);
}

static void read_plan(side *s) {
  const json_t *replicas = json_object_get(s->root, "replicas"),
               *slices = json_object_get(s->root, "slices"),
               *training = json_object_get(s->root, "training"),
               *stages = json_object_get(s->root, "stages");
  const uint64_t m = count_of(s->root, "microbatches", 1);
  s->trains = training != NULL;
  set(s, KIND, "plan for %s", s->trains ? "training" : "requests");
  read_work(s);
  set_planner(s, "-", s->root);
  set(s, SCHEDULE, "%.60s", text_of(s->root, "schedule", "?"));
  read_settings(s);
  set(s, DEVICES, "%zu", json_array_size(json_object_get(s->root, "devices")));
  set(s, COPIES, "%" PRIu64,
      count_of(training != NULL ? training : replicas, "copies", 1) == 0
          ? 1
          : count_of(training != NULL ? training : replicas, "copies", 1));
  const json_t *shares = json_object_get(training == NULL ? replicas : training, "shares");
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    const json_t *share = json_array_get(shares, i);
    s->stage_ns[i] = json_is_integer(share) ? json_number_value(share) : 1;
  }
  set_numbers(s, REPLICAS, s->stage_ns, s->n_stages);
  set(s, WIDTH, "1");
  set(s, MICROBATCHES, "%" PRIu64, m);
  set(s, SLICES, "%" PRIu64, count_of(training != NULL ? training : slices, "slices", 1));
  set(s, RECOMPUTE, "%.40s", text_of(training, "recompute", "none"));
  set(s, TRANSPORT, "%.60s", text_of(s->root, "transport", "?"));
  read_few_bits(s);
  s->cost[STEP] = number_of(s->root, "interval_ns");
  s->cost[REQUEST] = number_of(s->root, "request_ns");
  s->cost[BOUND] = number_of(s->root, "bound_ns");
  if (s->cost[BOUND] >= 0)
    s->cost[BOUND] *= (double)m;
  read_memory(s);
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    const json_t *stage = json_array_get(stages, i), *nodes = json_object_get(stage, "nodes");
    const size_t n = json_array_size(nodes);
    const char *last = n == 0 ? NULL : json_string_value(json_array_get(nodes, n - 1));
    s->stage_ns[i] = number_of(stage, "time_ns");
    s->last[i] = last == NULL ? "" : last;
  }
}

/* ---- strategies ---- */

static void read_strategy(side *s) {
  const json_t *stages = json_object_get(s->root, "stages");
  const uint64_t copies = count_of(s->root, "pipelines", 1), width = count_of(s->root, "width", 1);
  uint64_t n_devices = 0;
  set_planner(s, "?", json_object_get(s->root, "search"));
  s->samples = count_of(s->root, "samples", 0) * count_of(s->root, "microbatches", 1) * copies;
  set(s, SCHEDULE, "%.140s", text_of(s->root, "schedule", "?"));
  set(s, COPIES, "%" PRIu64, copies);
  set(s, WIDTH, "%" PRIu64, width);
  set(s, MICROBATCHES, "%" PRIu64, count_of(s->root, "microbatches", 1) * copies);
  set(s, SLICES, "%s", json_array_size(json_object_get(s->root, "slices")) == 0 ? "1" : "several");
  set(s, RECOMPUTE, "%s", json_is_true(json_object_get(s->root, "recompute")) ? "stage" : "none");
  set(s, TRANSPORT, "-");
  set(s, FEW_BITS, "-");
  s->cost[STEP] = number_of(s->root, "step_ns");
  s->cost[FULLEST] = number_of(s->root, "memory_bytes");
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    size_t d = 0;
    json_t *device = NULL;
    const json_t *stage = json_array_get(stages, i);
    json_array_foreach(json_object_get(stage, "devices"), d, device) {
      if (json_is_integer(device) && json_integer_value(device) >= (json_int_t)n_devices)
        n_devices = (uint64_t)json_integer_value(device) + 1;
    }
    s->stage_ns[i] = (double)json_array_size(json_object_get(stage, "devices")) /
                     (double)(width == 0 ? 1 : width);
    s->last[i] = text_of(stage, "last", "");
  }
  set_numbers(s, REPLICAS, s->stage_ns, s->n_stages);
  uint64_t n_layers = 0;
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    const json_t *stage = json_array_get(stages, i);
    const json_t *end = json_array_get(json_object_get(stage, "layers"), 1);
    s->stage_ns[i] = number_of(stage, "forward_ns");
    s->trains = s->trains || number_of(stage, "backward_ns") > 0;
    n_layers = json_is_integer(end) ? (uint64_t)json_integer_value(end) : n_layers;
  }
  set(s, KIND, "strategy for %s", s->trains ? "training" : "requests");
  set(s, MODEL, "%" PRIu64 " layers", n_layers);
  set(s, DEVICES, "%" PRIu64, n_devices * copies);
}

static opipe_status read_side(const opi_plan_text *text, opi_arena *arena, side *s,
                              opipe_error *err) {
  char what[TEXT_ROOM];
  const char *format = NULL;
  const json_t *stages = NULL;
  s->name = text->name;
  (void)snprintf(what, sizeof what, "'%.80s'", text->name);
  OPI_TRY(opi_json_parse(text->json, text->n_bytes, what, &s->root, err));
  OPI_TRY(opi_json_get_string(s->root, what, "format", &format, err));
  s->is_plan = strcmp(format, OPI_PLAN_FORMAT) == 0;
  if (!s->is_plan && strcmp(format, STRATEGY_FORMAT) != 0) {
    return opi_fail(err, OPIPE_E_UNSUPPORTED,
                    "%s: format \"%.40s\"; it must be \"" OPI_PLAN_FORMAT "\" or \"" STRATEGY_FORMAT
                    "\"",
                    what, format);
  }
  OPI_TRY(opi_json_get_array(s->root, what, "stages", &stages, err));
  const size_t n = json_array_size(stages);
  if (n == 0 || n > STAGES_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"stages\" has %zu entries; it must have 1 to %d",
                    what, n, STAGES_MOST);
  }
  s->n_stages = (uint32_t)n;
  s->stage_ns = OPI_ARENA_ARRAY(arena, double, n);
  s->last = OPI_ARENA_ARRAY(arena, const char *, n);
  if (s->stage_ns == NULL || s->last == NULL)
    return opi_fail_nomem(err, n * sizeof(double), "a comparison");
  for (uint32_t c = 0; c < COSTS; ++c)
    s->cost[c] = -1;
  set(s, STAGES, "%zu", n);
  if (s->is_plan)
    read_plan(s);
  else
    read_strategy(s);
  if (s->samples == 0)
    set(s, SAMPLES, "-");
  else
    set(s, SAMPLES, "%" PRIu64, s->samples);
  if (!s->is_plan)
    return OPIPE_OK;
  opi_plan_cut *cuts = NULL;
  const opipe_status status =
      opi_plan_cuts_read(s->root, what, s->n_stages, arena, &cuts, &s->cuts.n, &s->cuts.known, err);
  s->cuts.cuts = cuts;
  return status;
}

/* ---- side by side ---- */

static bool differ(const side *a, const side *b, uint32_t what) {
  return strcmp(a->text[what], b->text[what]) != 0;
}

/* In percent of a; 0 if either is unknown. */
static double change(double a, double b) {
  return a > 0 && b >= 0 ? 100 * (b / a - 1) : 0;
}

static const char *last_of(const side *s, uint32_t stage) {
  return stage < s->n_stages ? s->last[stage] : "";
}

/* "-": no such stage, or its time is unknown. */
static void print_ns(double ns, opi_text *t) {
  if (ns < 0)
    opi_text_printf(t, "%-*s", NAMES, "-");
  else
    opi_text_printf(t, "%-*.3f", NAMES, ns * 1e-6);
}

static void print_stages(const side *a, const side *b, opi_text *t) {
  char one[OPI_LINE_ROOM], other[OPI_LINE_ROOM];
  const uint32_t n = a->n_stages > b->n_stages ? a->n_stages : b->n_stages;
  for (uint32_t i = 0; i < n; ++i) {
    const double x = i < a->n_stages ? a->stage_ns[i] : -1,
                 y = i < b->n_stages ? b->stage_ns[i] : -1;
    const char *p = last_of(a, i), *q = last_of(b, i);
    if (strcmp(p, q) != 0) {
      opi_text_printf(t, "* stage %-4u ends with   %-*.*s %-*.*s\n", i, NAMES, NAMES,
                      opi_text_line(one, p), NAMES, NAMES, opi_text_line(other, q));
    }
    if (x < 0 && y < 0)
      continue;
    opi_text_printf(t, "  stage %-4u forward (ms) ", i);
    print_ns(x, t);
    opi_text_puts(t, " ");
    print_ns(y, t);
    if (x >= 0 && y >= 0)
      opi_text_printf(t, " %+.1f %%", change(x, y));
    opi_text_puts(t, "\n");
  }
}

/* Says which of two files with the same work is faster; per sample if their numbers of samples
 * differ. */
static void print_verdict(const side *a, const side *b, opi_text *t) {
  char line[OPI_LINE_ROOM];
  const bool each = a->samples != b->samples;
  const char *why = a->trains != b->trains     ? "one is for requests, one for training"
                    : a->is_plan != b->is_plan ? NULL
                    : differ(a, b, MODEL)      ? "they are of different models or shapes"
                                               : NULL;
  if (a->cost[STEP] <= 0 || b->cost[STEP] <= 0)
    return;
  if (each && (a->samples == 0 || b->samples == 0))
    why = "the number of samples of one is unknown";
  if (why != NULL) {
    opi_text_printf(t, "no prediction which is faster: %s\n", why);
    return;
  }
  const double x = a->cost[STEP] / (each ? (double)a->samples : 1);
  const double y = b->cost[STEP] / (each ? (double)b->samples : 1);
  opi_text_printf(t, "%s is predicted to be %.3f times as fast%s\n",
                  opi_text_line(line, y < x ? b->name : a->name), y < x ? x / y : y / x,
                  each ? " per sample" : "");
}

static void print_text(const side *a, const side *b, opi_text *t) {
  char line[OPI_LINE_ROOM];
  opi_text_printf(t, "%-25s %-*.*s", "", NAMES, NAMES, opi_text_line(line, a->name));
  opi_text_printf(t, " %.*s\n", NAMES, opi_text_line(line, b->name));
  for (uint32_t i = 0; i < DECISIONS; ++i) {
    opi_text_printf(t, "%c %-23s %-*s %s\n", differ(a, b, i) ? '*' : ' ', decisions[i], NAMES,
                    a->text[i], b->text[i]);
  }
  for (uint32_t c = 0; c < COSTS; ++c) {
    const double x = a->cost[c], y = b->cost[c];
    if (x >= 0 && y >= 0) {
      opi_text_printf(t, "  %-23s %-*.3f %-*.3f %+.1f %%\n", costs[c].title, NAMES,
                      x * costs[c].unit, NAMES, y * costs[c].unit, change(x, y));
    }
  }
  print_stages(a, b, t);
  opi_plan_cuts_print((const opi_plan_cuts[2]){a->cuts, b->cuts}, NAMES, t);
  print_verdict(a, b, t);
}

static void put_pair(const char *a, const char *b, opi_text *t) {
  opi_text_puts(t, "\"a\": ");
  opi_text_json(t, a);
  opi_text_puts(t, ", \"b\": ");
  opi_text_json(t, b);
}

static void put_numbers(double a, double b, opi_text *t) {
  const double both[2] = {a, b};
  for (uint32_t i = 0; i < 2; ++i) {
    opi_text_puts(t, i == 0 ? "\"a\": " : ", \"b\": ");
    if (both[i] < 0)
      opi_text_puts(t, "null");
    else
      opi_json_double(t, both[i]);
  }
}

static void print_json(const side *a, const side *b, opi_text *t) {
  bool first = true;
  const uint32_t n = a->n_stages > b->n_stages ? a->n_stages : b->n_stages;
  opi_text_puts(t, "{\"a\": ");
  opi_text_json(t, a->name);
  opi_text_puts(t, ", \"b\": ");
  opi_text_json(t, b->name);
  opi_text_puts(t, ",\n \"differs\": [");
  for (uint32_t i = 0; i < DECISIONS; ++i) {
    if (!differ(a, b, i))
      continue;
    opi_text_printf(t, "%s\n  {\"what\": \"%s\", ", first ? "" : ",", decisions[i]);
    put_pair(a->text[i], b->text[i], t);
    opi_text_puts(t, "}");
    first = false;
  }
  opi_text_puts(t, "],\n \"costs\": [");
  for (uint32_t c = 0; c < COSTS; ++c) {
    opi_text_printf(t, "%s\n  {\"what\": \"%s\", ", c == 0 ? "" : ",", costs[c].name);
    put_numbers(a->cost[c], b->cost[c], t);
    opi_text_puts(t, "}");
  }
  opi_text_puts(t, "],\n \"stages\": [");
  for (uint32_t i = 0; i < n; ++i) {
    opi_text_printf(t, "%s\n  {\"stage\": %u, \"forward_ns\": {", i == 0 ? "" : ",", i);
    put_numbers(i < a->n_stages ? a->stage_ns[i] : -1, i < b->n_stages ? b->stage_ns[i] : -1, t);
    opi_text_puts(t, "}, \"last\": {");
    put_pair(last_of(a, i), last_of(b, i), t);
    opi_text_puts(t, "}}");
  }
  opi_text_puts(t, "],\n \"cuts\": ");
  opi_plan_cuts_put((const opi_plan_cuts[2]){a->cuts, b->cuts}, t);
  opi_text_puts(t, "}\n");
}

opipe_status opi_plans_compare(const opi_plan_text texts[2], bool json,
                               const opipe_allocator *allocator, opi_text *text, opipe_error *err) {
  opi_arena arena;
  opipe_status status = OPIPE_OK;
  side *sides = opi_alloc_zero(allocator, 2, sizeof *sides);
  if (sides == NULL)
    return opi_fail_nomem(err, 2 * sizeof *sides, "a comparison");
  opi_arena_init(&arena, allocator, 0);
  for (uint32_t i = 0; i < 2 && status == OPIPE_OK; ++i)
    status = read_side(&texts[i], &arena, &sides[i], err);
  if (status == OPIPE_OK && json)
    print_json(&sides[0], &sides[1], text);
  else if (status == OPIPE_OK)
    print_text(&sides[0], &sides[1], text);
  for (uint32_t i = 0; i < 2; ++i)
    json_decref(sides[i].root);
  opi_arena_release(&arena);
  opi_free(allocator, sides, 2 * sizeof *sides);
  return status;
}
