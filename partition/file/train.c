/* SPDX-License-Identifier: Apache-2.0 */
/* Replicas and slices of plans as JSON, and all that concerns training: parameters, loss,
 * optimizer, versions, times of the three passes.
 */
#include "partition/file/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "partition/file/outline.h"
#include "partition/plan/spec.h"

static const char *const WHAT = "the plan's replicas or training";
enum { COUNT_MOST = 1 << 20 };

static const char *const LOSSES[] = {"output", "ce", "mse", "bce"};
#define NAME(KEY, number, name, ...) name,
static const char *const OPTIMIZERS[] = {OPIPE_OPTIMIZERS(NAME)};
static const char *const RATES[] = {"constant", "linear", "cosine"};
static const char *const RECOMPUTES[] = {"none", "stage", "block", "attention"};

/* ---- writing ---- */

static void write_number(opi_text *t, const char *name, double value) {
  opi_text_printf(t, ", \"%s\": ", name);
  opi_json_double(t, value);
}

static void write_optimizer(opi_text *t, const opi_optimizer *o) {
#define WRITE_NUMBER(KEY, field, ...) write_number(t, #field, o->field);
#define WRITE_SWITCH(KEY, field, ...) opi_text_printf(t, ", \"" #field "\": %u", o->field);
  opi_text_printf(t, "    \"optimizer\": {\"kind\": \"%s\"", OPTIMIZERS[o->kind]);
  OPIPE_TAKES(OPIPE_LEFT_OUT, WRITE_SWITCH)
  opi_text_printf(t,
                  ", \"rate\": \"%s\", \"warmup\": %" PRIu64 ", \"total\": %" PRIu64
                  ", \"loss_scaling\": %u",
                  RATES[o->lr_schedule], o->warmup_steps, o->total_steps, o->loss_scaling);
  OPIPE_TAKES(WRITE_NUMBER, OPIPE_LEFT_OUT)
  write_number(t, "clip_norm", o->clip_norm);
  if (o->shard != 0) /* a plan without is written as before 1.5 */
    opi_text_puts(t, ", \"shard\": 1");
  opi_text_puts(t, ", \"no_decay\": [");
  for (uint32_t i = 0; i < o->n_no_decay; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    opi_text_json(t, o->no_decay[i]);
  }
  opi_text_puts(t, "]},\n");
}

static void write_loss(opi_text *t, const opi_train_spec *spec) {
  opi_text_printf(
      t, "    \"loss\": {\"kind\": \"%s\", \"shift\": %u, \"ignore\": %" PRId64 ", \"smoothing\": ",
      LOSSES[spec->loss.kind], spec->loss.shift, spec->loss.ignore);
  opi_json_double(t, spec->loss.smoothing);
  if (spec->loss.output != NULL) {
    opi_text_puts(t, ", \"output\": ");
    opi_text_json(t, spec->loss.output);
  }
  if (spec->loss.labels != NULL) {
    opi_text_puts(t, ", \"labels\": ");
    opi_text_json(t, spec->loss.labels);
  }
  opi_text_puts(t, "},\n    \"trainable\": [");
  for (uint32_t i = 0; i < spec->n_globs; ++i) {
    opi_text_puts(t, i == 0 ? "[" : ", [");
    opi_text_json(t, spec->globs[i].pattern);
    opi_text_puts(t, spec->globs[i].trainable ? ", true]" : ", false]");
  }
  opi_text_puts(t, "],\n    \"trained\": [");
  for (uint32_t i = 0; i < spec->choice.n_trained; ++i) {
    opi_text_puts(t, i == 0 ? "\n      " : ",\n      ");
    opi_text_json(t, spec->choice.trained[i]);
  }
  opi_text_puts(t, "],\n    \"doubtful\": [");
  for (uint32_t i = 0; i < spec->choice.n_doubts; ++i) {
    opi_text_puts(t, i == 0 ? "\n      [" : ",\n      [");
    opi_text_json(t, spec->choice.doubts[i].name);
    opi_text_puts(t, ", ");
    opi_text_json(t, spec->choice.doubts[i].why);
    opi_text_puts(t, "]");
  }
  opi_text_puts(t, "],\n");
}

static void write_numbers(opi_text *t, const char *name, const double *numbers, uint32_t n) {
  opi_text_printf(t, ",\n    \"%s\": [", name);
  for (uint32_t i = 0; i < n; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    opi_json_double(t, numbers[i]);
  }
  opi_text_puts(t, "]");
}

static void write_counts(opi_text *t, const char *name, const uint32_t *counts, uint32_t n) {
  opi_text_printf(t, ",\n    \"%s\": [", name);
  for (uint32_t i = 0; counts != NULL && i < n; ++i) {
    opi_text_puts(t, i == 0 ? "" : ", ");
    if (counts[i] == OPIPE_NONE)
      opi_text_puts(t, "null");
    else
      opi_text_printf(t, "%u", counts[i]);
  }
  opi_text_puts(t, "]");
}

/* Forward plans with several replicas only. */
static void write_replicas(opi_text *t, const opi_decision *plan) {
  if (plan->n_replicas == 1)
    return;
  opi_text_printf(t, "  \"replicas\": {\n    \"copies\": %u,\n    \"replicas\": %u", plan->copies,
                  plan->n_replicas);
  write_counts(t, "ranks", plan->instance_rank, plan->n_stages * plan->n_replicas);
  if (plan->shares != NULL)
    write_counts(t, "shares", plan->shares, plan->n_stages);
  opi_text_puts(t, "\n  },\n");
}

/* Forward plans with token slices only. */
static void write_slices(opi_text *t, const opi_decision *plan) {
  if (plan->n_slices <= 1)
    return;
  opi_text_printf(t, "  \"slices\": {\n    \"slices\": %u", plan->n_slices);
  write_counts(t, "slice_lengths", plan->slice_lengths, plan->n_slices);
  opi_text_puts(t, "\n  },\n");
}

/* Plans with tensor groups only. */
void opi_json_write_tensor(opi_text *t, const opi_decision *plan) {
  if (opi_plan_width(plan) > 1) {
    opi_text_printf(
        t, "  \"tensor\": {\"width\": %u, %s%s\"parts\": \"%016" PRIx64 "%016" PRIx64 "\"},\n",
        plan->width, plan->division.sequence ? "\"sequence\": true, " : "",
        plan->division.scattered ? "\"scattered\": true, " : "", plan->division.print[0],
        plan->division.print[1]);
  }
}

void opi_json_write_train(opi_text *t, const opi_plan *plan, bool decisions) {
  const opi_train_spec *spec = plan->decided.train;
  if (spec == NULL) {
    write_replicas(t, &plan->decided);
    write_slices(t, &plan->decided);
    return;
  }
  opi_text_puts(t, "  \"training\": {\n");
  write_loss(t, spec);
  write_optimizer(t, &spec->optimizer);
  opi_text_printf(t,
                  "    \"recompute\": \"%s\",\n    \"compute\": %u,\n    \"copies\": %u,\n"
                  "    \"seed\": \"%" PRIu64
                  "\",\n    \"replicas\": %u,\n    \"slices\": %u,\n"
                  "    \"parts\": %u,\n    \"versions\": %u,\n    \"sync\": %u",
                  RECOMPUTES[spec->recompute], spec->compute, spec->replicas, spec->seed,
                  plan->decided.n_replicas, plan->decided.n_slices, plan->decided.n_parts,
                  plan->decided.versions, plan->decided.sync);
  write_counts(t, "ranks", plan->decided.instance_rank,
               plan->decided.n_stages * plan->decided.n_replicas);
  if (plan->decided.shares != NULL)
    write_counts(t, "shares", plan->decided.shares, plan->decided.n_stages);
  write_counts(t, "slice_lengths", plan->decided.slice_lengths, plan->decided.n_slices);
  if (!decisions) {
    write_numbers(t, "input_ns", plan->predicted.times.input_ns, plan->decided.n_stages);
    write_numbers(t, "weight_ns", plan->predicted.times.weight_ns, plan->decided.n_stages);
  }
  opi_text_puts(t, "\n  },\n");
}

/* ---- reading ---- */

static opipe_status read_choice(const json_t *object, const char *name, const char *const *choices,
                                uint32_t n, uint32_t *out, opipe_error *err) {
  const char *text = NULL;
  OPI_TRY(opi_json_get_string(object, WHAT, name, &text, err));
  for (*out = 0; *out < n; ++*out) {
    if (strcmp(choices[*out], text) == 0)
      return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_INVALID, "%s: %s is '%.40s'", WHAT, name, text);
}

static opipe_status read_u32(const json_t *object, const char *name, uint32_t max, uint32_t *out,
                             opipe_error *err) {
  uint64_t value = 0;
  OPI_TRY(opi_json_get_u64(object, WHAT, name, max, &value, err));
  *out = (uint32_t)value;
  return OPIPE_OK;
}

/* An optional string; NULL if absent. */
static opipe_status read_name(const json_t *object, const char *name, const char **out,
                              opipe_error *err) {
  *out = NULL;
  return json_object_get(object, name) == NULL ? OPIPE_OK
                                               : opi_json_get_string(object, WHAT, name, out, err);
}

static opipe_status read_loss(const json_t *root, opi_train_spec *spec, opipe_error *err) {
  const json_t *loss = json_object_get(root, "loss");
  const json_t *ignore = json_object_get(loss, "ignore");
  if (!json_is_integer(ignore))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"loss\" needs an integer \"ignore\"", WHAT);
  OPI_TRY(read_choice(loss, "kind", LOSSES, OPI_COUNT(LOSSES), &spec->loss.kind, err));
  OPI_TRY(read_u32(loss, "shift", 1, &spec->loss.shift, err));
  OPI_TRY(opi_json_get_number(loss, WHAT, "smoothing", &spec->loss.smoothing, err));
  spec->loss.ignore = json_integer_value(ignore);
  OPI_TRY(read_name(loss, "output", &spec->loss.output, err));
  return read_name(loss, "labels", &spec->loss.labels, err);
}

static opipe_status read_optimizer(const json_t *root, opi_arena *scratch, opi_optimizer *o,
                                   opipe_error *err) {
#define READ_NUMBER(KEY, field, ...) \
  OPI_TRY(opi_json_get_number(object, WHAT, #field, &o->field, err));
#define READ_SWITCH(KEY, field, ...) OPI_TRY(read_u32(object, #field, 1, &o->field, err));
  const json_t *object = json_object_get(root, "optimizer"), *globs = NULL;
  OPI_TRY(read_choice(object, "kind", OPTIMIZERS, OPI_COUNT(OPTIMIZERS), &o->kind, err));
  OPI_TRY(read_choice(object, "rate", RATES, OPI_COUNT(RATES), &o->lr_schedule, err));
  OPIPE_TAKES(OPIPE_LEFT_OUT, READ_SWITCH)
  OPI_TRY(read_u32(object, "loss_scaling", 1, &o->loss_scaling, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "warmup", INT64_MAX, &o->warmup_steps, err));
  OPI_TRY(opi_json_get_u64(object, WHAT, "total", INT64_MAX, &o->total_steps, err));
  OPIPE_TAKES(READ_NUMBER, OPIPE_LEFT_OUT)
  OPI_TRY(opi_json_get_number(object, WHAT, "clip_norm", &o->clip_norm, err));
  if (json_object_get(object, "shard") != NULL)
    OPI_TRY(read_u32(object, "shard", 1, &o->shard, err));
  OPI_TRY(opi_json_get_array(object, WHAT, "no_decay", &globs, err));
  const char **list = OPI_ARENA_ARRAY(scratch, const char *, json_array_size(globs));
  if (list == NULL)
    return opi_fail_nomem(err, json_array_size(globs), "a plan");
  for (size_t i = 0; i < json_array_size(globs); ++i) {
    list[o->n_no_decay] = json_string_value(json_array_get(globs, i));
    if (list[o->n_no_decay++] == NULL)
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"no_decay\" must hold strings", WHAT);
  }
  o->no_decay = list;
  return OPIPE_OK;
}

static opipe_status read_globs(const json_t *root, opi_arena *scratch, opi_train_spec *spec,
                               opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(root, WHAT, "trainable", &list, err));
  const size_t n = json_array_size(list);
  opi_train_glob *globs = OPI_ARENA_ARRAY(scratch, opi_train_glob, n);
  if (globs == NULL)
    return opi_fail_nomem(err, n * sizeof *globs, "a plan");
  for (size_t i = 0; i < n; ++i) {
    const json_t *pair = json_array_get(list, i), *trainable = json_array_get(pair, 1);
    globs[i] = (opi_train_glob){.pattern = json_string_value(json_array_get(pair, 0)),
                                .trainable = json_is_true(trainable)};
    if (globs[i].pattern == NULL || !json_is_boolean(trainable))
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"trainable\" must hold [glob, boolean]", WHAT);
  }
  spec->globs = globs;
  spec->n_globs = (uint32_t)n;
  return OPIPE_OK;
}

static opipe_status read_choice_lists(const json_t *root, opi_arena *scratch,
                                      opi_train_choice *choice, opipe_error *err) {
  const json_t *names = NULL, *pairs = NULL;
  OPI_TRY(opi_json_get_array(root, WHAT, "trained", &names, err));
  OPI_TRY(opi_json_get_array(root, WHAT, "doubtful", &pairs, err));
  const char **trained = OPI_ARENA_ARRAY(scratch, const char *, json_array_size(names));
  opi_train_doubt *doubts = OPI_ARENA_ARRAY(scratch, opi_train_doubt, json_array_size(pairs));
  if (trained == NULL || doubts == NULL)
    return opi_fail_nomem(err, json_array_size(names) * sizeof *trained, "a plan");
  *choice = (opi_train_choice){.trained = trained,
                               .doubts = doubts,
                               .n_trained = (uint32_t)json_array_size(names),
                               .n_doubts = (uint32_t)json_array_size(pairs)};
  for (uint32_t i = 0; i < choice->n_trained; ++i) {
    trained[i] = json_string_value(json_array_get(names, i));
    if (trained[i] == NULL)
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"trained\" must hold strings", WHAT);
  }
  for (uint32_t i = 0; i < choice->n_doubts; ++i) {
    const json_t *pair = json_array_get(pairs, i);
    doubts[i] = (opi_train_doubt){.name = json_string_value(json_array_get(pair, 0)),
                                  .why = json_string_value(json_array_get(pair, 1))};
    if (doubts[i].name == NULL || doubts[i].why == NULL)
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"doubtful\" must hold pairs of strings", WHAT);
  }
  if (choice->n_trained == 0)
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"trained\" is empty", WHAT);
  return OPIPE_OK;
}

static opipe_status read_spec(const json_t *root, opi_plan *plan, opi_arena *scratch,
                              opipe_error *err) {
  opi_train_spec spec = {.n_globs = 0};
  const char *seed = NULL;
  OPI_TRY(read_loss(root, &spec, err));
  OPI_TRY(read_globs(root, scratch, &spec, err));
  OPI_TRY(read_choice_lists(root, scratch, &spec.choice, err));
  OPI_TRY(read_optimizer(root, scratch, &spec.optimizer, err));
  OPI_TRY(read_choice(root, "recompute", RECOMPUTES, OPI_COUNT(RECOMPUTES), &spec.recompute, err));
  OPI_TRY(read_u32(root, "compute", 64, &spec.compute, err));
  OPI_TRY(read_u32(root, "copies", COUNT_MOST, &spec.replicas, err));
  OPI_TRY(opi_json_get_string(root, WHAT, "seed", &seed, err));
  if (!opi_json_parse_u64(seed, &spec.seed))
    return opi_fail(err, OPIPE_E_INVALID, "%s: the seed is '%.40s'", WHAT, seed);
  return opi_train_spec_copy(plan, &spec, err);
}

opipe_status opi_json_read_train(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *training = json_object_get(root, "training");
  opi_arena scratch;
  if (training == NULL)
    return OPIPE_OK;
  opi_arena_init(&scratch, plan->decided.allocator, 0);
  const opipe_status status = read_spec(training, plan, &scratch, err);
  opi_arena_release(&scratch);
  plan->decided.binding.bind_flags |= OPI_BIND_KEEP_PARAMETERS;
  return status;
}

static opipe_status read_counts(const json_t *object, const char *name, opi_plan *plan, size_t n,
                                uint32_t max, uint32_t **out, opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(object, WHAT, name, &list, err));
  *out = NULL;
  if (json_array_size(list) == 0)
    return OPIPE_OK;
  if (json_array_size(list) != n) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" has %zu numbers; it must have %zu", WHAT,
                    name, json_array_size(list), n);
  }
  *out = OPI_ARENA_ARRAY(&plan->arena, uint32_t, n);
  if (*out == NULL)
    return opi_fail_nomem(err, n * sizeof **out, "a plan");
  for (size_t i = 0; i < n; ++i) {
    const json_int_t value = json_integer_value(json_array_get(list, i));
    if (json_is_null(json_array_get(list, i))) {
      (*out)[i] = OPIPE_NONE;
      continue;
    }
    if (!json_is_integer(json_array_get(list, i)) || value < 0 || value > (json_int_t)max) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must hold integers up to %u", WHAT, name,
                      max);
    }
    (*out)[i] = (uint32_t)value;
  }
  return OPIPE_OK;
}

static opipe_status read_times(const json_t *object, const char *name, opi_plan *plan, double **out,
                               opipe_error *err) {
  const json_t *list = NULL;
  OPI_TRY(opi_json_get_array(object, WHAT, name, &list, err));
  if (json_array_size(list) != plan->decided.n_stages) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" has %zu numbers for %u stages", WHAT, name,
                    json_array_size(list), plan->decided.n_stages);
  }
  *out = OPI_ARENA_ARRAY(&plan->arena, double, plan->decided.n_stages);
  if (*out == NULL)
    return opi_fail_nomem(err, plan->decided.n_stages * sizeof **out, "a plan");
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s)
    OPI_TRY(opi_json_time(json_array_get(list, s), WHAT, name, &(*out)[s], err));
  return OPIPE_OK;
}

/* Reads how many replicas divide micro-batches. Stage s must have exactly its first shares[s]
 * replicas; every other stage must have all. */
static opipe_status read_shares(const json_t *t, opi_plan *plan, opipe_error *err) {
  plan->decided.shares = NULL;
  if (json_object_get(t, "shares") != NULL) {
    OPI_TRY(read_counts(t, "shares", plan, plan->decided.n_stages, plan->decided.n_replicas,
                        &plan->decided.shares, err));
    if (plan->decided.shares == NULL)
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"shares\" is empty", WHAT);
  }
  for (uint32_t i = 0; i < plan->decided.n_stages * plan->decided.n_replicas; ++i) {
    const uint32_t s = i / plan->decided.n_replicas, r = i % plan->decided.n_replicas;
    const uint32_t n =
        plan->decided.shares == NULL ? plan->decided.n_replicas : plan->decided.shares[s];
    if (n == 0 || n == OPIPE_NONE || (plan->decided.instance_rank[i] != OPIPE_NONE) != (r < n)) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: replica %u of stage %u of %u replicas %s", WHAT, r,
                      s, n == OPIPE_NONE ? 0 : n,
                      plan->decided.instance_rank[i] == OPIPE_NONE ? "has no rank" : "has a rank");
    }
  }
  return OPIPE_OK;
}

/* Reads the ranks of all replicas; those of replica 0 must agree with "stages". */
static opipe_status read_ranks(const json_t *t, opi_plan *plan, opipe_error *err) {
  const uint32_t *ranks = plan->decided.instance_rank;
  OPI_TRY(read_u32(t, "replicas", COUNT_MOST, &plan->decided.n_replicas, err));
  if (plan->decided.n_replicas == 0 ||
      (uint64_t)plan->decided.n_replicas * plan->decided.n_stages > COUNT_MOST) {
    return opi_fail(err, OPIPE_E_INVALID, "%s: %u replicas of %u stages", WHAT,
                    plan->decided.n_replicas, plan->decided.n_stages);
  }
  OPI_TRY(read_counts(t, "ranks", plan, (size_t)plan->decided.n_replicas * plan->decided.n_stages,
                      plan->decided.n_ranks - 1, &plan->decided.instance_rank, err));
  if (plan->decided.instance_rank == NULL)
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"ranks\" is empty", WHAT);
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s) {
    if (opi_plan_rank(&plan->decided, s, 0) != ranks[s]) {
      return opi_fail(err, OPIPE_E_INVALID, "%s: stage %u is on rank %u, \"ranks\" has rank %u",
                      WHAT, s, ranks[s], opi_plan_rank(&plan->decided, s, 0));
    }
  }
  return read_shares(t, plan, err);
}

/* Forward plans have this member if they have several replicas. */
static opipe_status read_replicas(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *t = json_object_get(root, "replicas");
  if (t == NULL)
    return OPIPE_OK;
  OPI_TRY(read_u32(t, "copies", plan->decided.n_ranks, &plan->decided.copies, err));
  plan->decided.in_turn = plan->decided.n_microbatches < plan->decided.copies;
  OPI_TRY(read_ranks(t, plan, err));
  if (plan->decided.shares == NULL || plan->decided.copies <= 1)
    return OPIPE_OK;
  return opi_fail(err, OPIPE_E_INVALID,
                  "%s: both \"shares\" of replicas that divide micro-batches and %u copies of the "
                  "pipeline",
                  WHAT, plan->decided.copies);
}

static opipe_status read_lengths(const json_t *t, opi_plan *plan, opipe_error *err) {
  OPI_TRY(read_counts(t, "slice_lengths", plan, plan->decided.n_slices, COUNT_MOST,
                      &plan->decided.slice_lengths, err));
  for (uint32_t k = 0; plan->decided.slice_lengths != NULL && k < plan->decided.n_slices; ++k) {
    if (plan->decided.slice_lengths[k] == OPIPE_NONE)
      return opi_fail(err, OPIPE_E_INVALID, "%s: \"slice_lengths\" must hold numbers", WHAT);
  }
  return OPIPE_OK;
}

/* Forward plans have this member if they have several slices. */
static opipe_status read_slices(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *t = json_object_get(root, "slices");
  if (t == NULL)
    return OPIPE_OK;
  OPI_TRY(read_u32(t, "slices", UINT16_MAX, &plan->decided.n_slices, err));
  return read_lengths(t, plan, err);
}

opipe_status opi_json_read_layout(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *t = json_object_get(root, "training");
  if (t == NULL) {
    OPI_TRY(read_replicas(root, plan, err));
    return read_slices(root, plan, err);
  }
  OPI_TRY(read_u32(t, "slices", UINT16_MAX, &plan->decided.n_slices, err));
  OPI_TRY(read_u32(t, "parts", UINT8_MAX, &plan->decided.n_parts, err));
  OPI_TRY(read_u32(t, "versions", OPIPE_VERSIONS_DOUBLE_BUFFERED, &plan->decided.versions, err));
  OPI_TRY(read_u32(t, "sync", OPIPE_SYNC_EAGER_OPT, &plan->decided.sync, err));
  OPI_TRY(read_ranks(t, plan, err));
  OPI_TRY(read_lengths(t, plan, err));
  OPI_TRY(read_times(t, "input_ns", plan, &plan->predicted.times.input_ns, err));
  return read_times(t, "weight_ns", plan, &plan->predicted.times.weight_ns, err);
}

static opipe_status read_flag(const json_t *object, const char *name, bool *out, opipe_error *err) {
  const json_t *flag = json_object_get(object, name);
  if (flag != NULL && !json_is_boolean(flag))
    return opi_fail(err, OPIPE_E_INVALID, "%s: \"%s\" must be true or false", WHAT, name);
  *out = json_is_true(flag);
  return OPIPE_OK;
}

opipe_status opi_json_read_tensor(const json_t *root, opi_plan *plan, opipe_error *err) {
  const json_t *object = json_object_get(root, "tensor");
  opi_decision *decided = &plan->decided;
  const char *print = NULL;
  if (object == NULL)
    return OPIPE_OK;
  OPI_TRY(read_u32(object, "width", UINT32_MAX, &decided->width, err));
  OPI_TRY(read_flag(object, "sequence", &decided->division.sequence, err));
  OPI_TRY(read_flag(object, "scattered", &decided->division.scattered, err));
  if (decided->width < 2 || decided->n_ranks % decided->width != 0) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: tensor groups of %u member%s on %u devices: a width above 1 must divide "
                    "these",
                    WHAT, decided->width, decided->width == 1 ? "" : "s", decided->n_ranks);
  }
  if (json_object_get(root, "hash") == NULL)
    return OPIPE_OK; /* edited decisions: made anew */
  OPI_TRY(opi_json_get_string(object, WHAT, "parts", &print, err));
  return opi_json_read_print(print, decided->division.print, err);
}
