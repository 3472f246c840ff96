/* SPDX-License-Identifier: Apache-2.0 */
/* See caps.h. */
#include "tests/partition/caps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 8, CUT = 512, TRIES = 64, STAGES = 16, UNLIKE = 4096 };
/* Positions: all 16; 12 of them, where many stages make many cuts. */
enum { ALL = 0xffff, MOST = 0xb7b7 };
#define SMALLEST "tests/data/caps/smallest.txt"

static const caps_model gpt = {"gpt", "tests/data/gpt_8block/model.onnx", "add_%d", 1, 3, 16, 32};
static const caps_model gpt_short = {
    "gpt_short", "tests/data/gpt_8block/model.onnx", "add_%d", 4, 3, 16, 8};
static const caps_model llama = {"llama", "tests/data/llama_8block/model.onnx", "add_%d", 5, 6, 8,
                                 24};
static const caps_model encoder = {
    "encoder", "tests/data/encoder/model.onnx", "layer_norm_%d", 1, 1, 4, 16};

#define LINE(model, schedule, stages, positions) \
  { &(model), schedule, CAPS_RANKS, stages, positions, true }
#define FORWARD(model, schedule, stages, positions) \
  { &(model), schedule, CAPS_RANKS, stages, positions }

const caps_case caps_cases[] = {
    LINE(gpt, "1f1b", 4, ALL),
    LINE(gpt, "interleaved:chunks=2", 8, MOST),
    LINE(gpt, "chimera", 4, ALL),
    LINE(gpt, "zbv", 8, MOST),
    FORWARD(gpt, "gpipe", 4, ALL),
    LINE(gpt, "gpipe", 4, ALL),
    LINE(gpt, "1f1b:policy=pa", 4, ALL),
    LINE(gpt, "zb-h1", 4, ALL),
    LINE(gpt, "zb-h2", 4, ALL),
    LINE(gpt, "zb-auto", 4, ALL),
    LINE(gpt, "2bw", 4, ALL),
    LINE(gpt, "sequential", 4, ALL),
    LINE(gpt, "chimera:concat=doubling", 4, ALL),
    LINE(gpt, "looped-bfs:chunks=2", 8, MOST),
    LINE(gpt, "zb-interleaved:chunks=2", 8, MOST),
    LINE(gpt, "v-half", 8, MOST),
    LINE(gpt, "v-min", 8, MOST),
    LINE(gpt, "dualpipev", 8, MOST),
    LINE(gpt, "terapipe:slices=4", 4, ALL),
    LINE(gpt, "interleaved:chunks=2", 8, ALL),
    LINE(gpt, "zbv", 8, ALL),
    LINE(gpt_short, "1f1b", 4, ALL),
    LINE(gpt_short, "gpipe", 4, ALL),
    LINE(gpt_short, "zb-h1", 4, ALL),
    LINE(gpt_short, "chimera", 4, ALL),
    LINE(gpt_short, "2bw", 4, ALL),
    LINE(gpt_short, "interleaved:chunks=2", 8, MOST),
    LINE(gpt_short, "zbv", 8, MOST),
    FORWARD(gpt, "interleaved:chunks=2", 8, MOST),
    FORWARD(gpt_short, "1f1b", 4, ALL),
    FORWARD(gpt_short, "interleaved:chunks=2", 8, ALL),
    {&gpt, "1f1b", 2, 2, ALL, true},
    {&gpt, "1f1b", 3, 3, ALL, true},
    {&gpt_short, "interleaved:chunks=3", 2, 6, ALL, true},
    {&gpt_short, "zbv", 2, 4, ALL, true},
    LINE(llama, "1f1b", 4, ALL),
    LINE(llama, "zb-auto", 4, ALL),
    LINE(llama, "chimera", 4, ALL),
    LINE(llama, "2bw", 4, ALL),
    {&llama, "interleaved:chunks=2", 3, 6, ALL, true},
    {&llama, "zbv", 3, 6, ALL, true},
    {&llama, "v-half", 3, 6, ALL, true},
    FORWARD(llama, "gpipe", 4, ALL),
    {&encoder, "1f1b", 3, 3, ALL, true},
    {&encoder, "zbv", 2, 4, ALL, true},
    {&encoder, "gpipe", 4, 4, ALL, false},
};
const size_t caps_n_cases = OPI_COUNT(caps_cases);

/* Which of the model's positions the case has; returns how many. */
static uint32_t list_positions(const caps_case *c, uint32_t *out) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < c->model->n; ++i) {
    if ((c->positions >> i & 1) != 0)
      out[n++] = i;
  }
  return n;
}

void caps_name(const caps_case *c, char *text, size_t room) {
  uint32_t ignored[CAPS_POSITIONS];
  (void)snprintf(text, room, "%s/%s/%u-ranks/%u-stages/%u-positions/%s%s", c->model->name,
                 c->schedule, c->n_ranks, c->n_stages, list_positions(c, ignored),
                 c->training ? "training" : "inference", c->here ? "/here" : "");
}

/* ---- plans ---- */

/* caps_bytes [n_ranks]; cut NULL: searched. On success the plan is the kit's. */
static opipe_status plan(kit *k, const caps_case *c, const uint64_t *caps_bytes, const char *cut) {
  static const opi_costs costs = {.forward = 1, .input = 1, .weight = 1};
  const opi_train_spec spec = {
      .loss = {.kind = OPI_LOSS_CROSS_ENTROPY, .labels = "labels", .ignore = -100},
      .optimizer = {.kind = OPIPE_OPTIMIZER_ADAMW,
                    .lr = 0.001,
                    .beta1 = 0.9,
                    .beta2 = 0.999,
                    .epsilon = 1e-8}};
  const opi_bind_options bind = {.dims = k->dims,
                                 .n_dims = k->n_dims,
                                 .flags = c->training ? OPI_BIND_KEEP_PARAMETERS : 0,
                                 .evaluator = k->evaluator,
                                 .allocator = opi_allocator_system()};
  const opi_plan_env env = {.allocator = opi_allocator_system(),
                            .plugins = &k->plugins,
                            .model = k->model,
                            .bind = &bind,
                            .costs = &costs};
  opipe_device_choice devices[CAPS_RANKS];
  opipe_device_description descriptions[CAPS_RANKS];
  for (uint32_t r = 0; r < c->n_ranks; ++r) {
    devices[r] = (opipe_device_choice){.kind = "cpu", .memory_bytes = caps_bytes[r], .threads = 1};
    descriptions[r] = (opipe_device_description){.flops = 1e10, .bandwidth = 1e10, .alignment = 64};
  }
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_ranks = c->n_ranks,
                                    .n_stages = c->n_stages,
                                    .devices = devices,
                                    .n_devices = c->n_ranks,
                                    .devices_stride = sizeof *devices,
                                    .descriptions = c->here ? NULL : descriptions,
                                    .n_descriptions = c->here ? 0 : c->n_ranks,
                                    .descriptions_stride = c->here ? 0 : sizeof *descriptions,
                                    .n_microbatches = ROWS,
                                    .schedule = c->schedule,
                                    .cut = cut};
  opi_plan_free(k->plan);
  k->plan = NULL;
  return c->training ? opi_plan_make_training(&env, &params, &spec, &k->plan, &k->err)
                     : opi_plan_make(&env, &params, &k->plan, &k->err);
}

static opipe_status plan_alike(kit *k, const caps_case *c, uint64_t cap, const char *cut) {
  uint64_t caps[CAPS_RANKS];
  for (uint32_t r = 0; r < CAPS_RANKS; ++r)
    caps[r] = cap;
  return plan(k, c, caps, cut);
}

static uint64_t most_of(const opi_plan *made) {
  uint64_t most = 0;
  for (uint32_t r = 0; r < made->decided.n_ranks; ++r) {
    most =
        made->predicted.memory[r].total_bytes > most ? made->predicted.memory[r].total_bytes : most;
  }
  return most;
}

static uint64_t number_behind(const char *text, const char *words) {
  const char *at = strstr(text, words);
  return at == NULL ? 0 : strtoull(at + strlen(words), NULL, 10);
}

/* ---- every cut ---- */

/* Positions ends[0] < ends[1] ... as a cut's text. */
static void spell(const caps_case *c, const uint32_t *ends, char *cut) {
  uint32_t positions[CAPS_POSITIONS];
  size_t n = 0;
  (void)list_positions(c, positions);
  cut[0] = '\0';
  for (uint32_t s = 0; s + 1 < c->n_stages; ++s) {
    char name[32];
    (void)snprintf(name, sizeof name, c->model->pattern,
                   c->model->first + (int32_t)positions[ends[s]] * c->model->step);
    n += (size_t)snprintf(cut + n, CUT - n, "%s%s", n == 0 ? "" : ";", name);
  }
}

/* The next choice of as many positions; false: that was the last. */
static bool advance(uint32_t *ends, uint32_t n_ends, uint32_t n_positions) {
  uint32_t s = n_ends;
  while (s > 0 && ends[s - 1] == n_positions - (n_ends - s) - 1)
    --s;
  if (s == 0)
    return false;
  ++ends[s - 1];
  for (; s < n_ends; ++s)
    ends[s] = ends[s - 1] + 1;
  return true;
}

/* The least cap that the cut fits, below `most`: each rank's in turn, since a schedule may keep
 * less where less is allowed. */
static uint64_t least_of_cut(kit *k, const caps_case *c, const char *cut, uint64_t most) {
  uint64_t caps[CAPS_RANKS] = {1, 1, 1, 1}, least = 0;
  opipe_status status = OPIPE_E_LIMIT;
  for (uint32_t i = 0; i < TRIES && status == OPIPE_E_LIMIT; ++i) {
    status = plan(k, c, caps, cut);
    const uint64_t rank = number_behind(k->err.message, "rank ");
    const uint64_t needs = number_behind(k->err.message, " needs ");
    if (status == OPIPE_E_LIMIT && rank < c->n_ranks && needs > caps[rank])
      caps[rank] = needs;
  }
  for (uint32_t r = 0; r < c->n_ranks; ++r)
    least = caps[r] > least ? caps[r] : least;
  if (status != OPIPE_OK || least >= most || plan_alike(k, c, least, cut) != OPIPE_OK)
    return most;
  return least;
}

static uint64_t try_all(kit *k, const caps_case *c) {
  uint32_t ends[STAGES] = {0}, positions[CAPS_POSITIONS];
  const uint32_t n = list_positions(c, positions), n_ends = c->n_stages - 1;
  uint64_t best = 0;
  char cut[CUT];
  bool more = true;
  for (uint32_t s = 0; s < n_ends; ++s)
    ends[s] = s;
  while (more) {
    spell(c, ends, cut);
    const opipe_status status = plan_alike(k, c, best == 0 ? 0 : best - 1, cut);
    if (status == OPIPE_OK) {
      best = most_of(k->plan);
      best = least_of_cut(k, c, cut, best);
    } else if (status != OPIPE_E_LIMIT || best == 0) {
      char name[160];
      caps_name(c, name, sizeof name);
      OPI_FAIL("%s, cut %s: %s", name, cut, k->err.message);
      return 0;
    }
    more = advance(ends, n_ends, n);
  }
  return best;
}

static opipe_status open_model(kit *k, const caps_case *c) {
  return kit_open(k, opi_test_source(c->model->path), ROWS, c->model->tokens);
}

uint64_t caps_smallest(const caps_case *c) {
  kit k;
  uint64_t smallest = 0;
  if (open_model(&k, c) == OPIPE_OK)
    smallest = try_all(&k, c);
  else
    OPI_FAIL("%s: %s", c->model->name, k.err.message);
  kit_close(&k);
  return smallest;
}

uint64_t caps_recorded(const caps_case *c) {
  char name[160], line[256];
  uint64_t smallest = 0;
  FILE *file = fopen(opi_test_source(SMALLEST), "r");
  caps_name(c, name, sizeof name);
  while (file != NULL && smallest == 0 && fgets(line, sizeof line, file) != NULL) {
    const size_t n = strlen(name);
    if (strncmp(line, name, n) == 0 && line[n] == ' ')
      smallest = strtoull(line + n, NULL, 10);
  }
  if (file != NULL)
    (void)fclose(file);
  return smallest;
}

/* ---- the planner ---- */

/* Under a cap that a plan must be made for: NULL, or why it does not hold. */
static const char *must_fit(kit *k, const caps_case *c, uint64_t cap) {
  if (plan_alike(k, c, cap, NULL) != OPIPE_OK)
    return k->err.message;
  return most_of(k->plan) <= cap ? NULL : "the plan takes more than its cap";
}

/* Caps that are not alike, and hopeless: the refusal says what all must grow by. */
static void check_unlike(kit *k, const caps_case *c, const char *name) {
  uint64_t caps[CAPS_RANKS];
  for (uint32_t r = 0; r < CAPS_RANKS; ++r)
    caps[r] = 1 + r * UNLIKE;
  const opipe_status status = plan(k, c, caps, NULL);
  const uint64_t more = number_behind(k->err.message, "are larger by ");
  for (uint32_t r = 0; r < CAPS_RANKS; ++r)
    caps[r] += more;
  if (status != OPIPE_E_LIMIT || more == 0 || plan(k, c, caps, NULL) != OPIPE_OK)
    OPI_FAIL("%s, caps larger by %" PRIu64 " bytes: %s", name, more, k->err.message);
}

/* The smallest cap and all above it, of which some are tried. */
static void check_all_above(kit *k, const caps_case *c, uint64_t smallest, const char *name) {
  static const uint32_t percent[] = {2, 4, 7, 12, 20, 35, 60, 100};
  for (size_t i = 0; i < OPI_COUNT(percent); ++i) {
    const uint64_t cap = smallest + smallest / 100 * percent[i];
    const char *wrong = must_fit(k, c, cap);
    if (wrong != NULL) {
      OPI_FAIL("%s, %" PRIu64 " bytes, where some cut fits %" PRIu64 ": %s", name, cap, smallest,
               wrong);
    }
  }
}

void caps_check(const caps_case *c, uint64_t smallest) {
  char name[160];
  kit k;
  caps_name(c, name, sizeof name);
  if (open_model(&k, c) != OPIPE_OK) {
    OPI_FAIL("%s: %s", name, k.err.message);
    kit_close(&k);
    return;
  }
  check_all_above(&k, c, smallest, name);
  check_unlike(&k, c, name);
  const opipe_status status = plan_alike(&k, c, 1, NULL);
  const uint64_t stated = number_behind(k.err.message, "smallest cap found feasible is ");
  if (status != OPIPE_E_LIMIT || stated == 0 || stated > smallest + smallest / 50) {
    OPI_FAIL("%s, 1 byte: status %d, %s; a cut fits %" PRIu64, name, status, k.err.message,
             smallest);
  }
  const char *wrong = stated == 0 ? NULL : must_fit(&k, c, stated);
  if (wrong != NULL)
    OPI_FAIL("%s, %" PRIu64 " bytes, as the refusal said: %s", name, stated, wrong);
  (void)printf("%s: %" PRIu64 " of %" PRIu64 " bytes (%.2f %%)\n", name, stated, smallest,
               100.0 * (double)stated / (double)smallest);
  kit_close(&k);
}
