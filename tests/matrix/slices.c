/* SPDX-License-Identifier: Apache-2.0 */
/* The cases of slices.h: model folder x data set x fused or not x schedule x stages x
 * micro-batches. */
#include "tests/matrix/slices.h"

#include <stdio.h>

#include "tests/matrix/cases.h"

/* Decoders whose outputs are rows of tokens: they must not be refused. */
static const char *const DECODERS[] = {
    "modern/gpt2/infer",      "modern/gpt2/infer_op23", "modern/gpt2/infer_legacy",
    "modern/gpt2/infer_bf16", "modern/llama/infer",     "modern/bloom/infer",
    "modern/gemma2/infer",    "modern/gptneox/infer",   "modern/olmo2/infer",
    "modern/opt/infer",       "modern/phi3/infer",      "modern/qwen2/infer",
};

/* Why a plan may not have slices; each names the node, output or number. */
static const char *const REASONS[] = {
    "tokens cannot be sliced: ",
    "does not carry the axis",
    "has no token axis to slice",
    "has tokens along two axes",
    "no input has a free token dimension",
    "the graph depends on the number of tokens",
    "slices of ",
    "the slices have ",
    "depending on the number of tokens",
};

static const char *const SCHEDULES[] = {"terapipe:slices=2", "seq1f1b:slices=3",
                                        "terapipe:slices=4"};

typedef struct choice {
  uint32_t set, schedule, stages, microbatches;
  bool fuse;
  kit_place place;
} choice;

bool mx_is_decoder(const char *name) {
  bool found = false;
  for (size_t i = 0; i < OPI_COUNT(DECODERS); ++i)
    found = found || strcmp(DECODERS[i], name) == 0;
  return found;
}

static void fail(mx_sliced *count, const mx_model *m, const choice *c, const char *what) {
  ++count->failed;
  OPI_FAIL("%s set %u, %s, %s, %u stages, %u micro-batches: %s", m->folder->name, c->set,
           c->fuse ? "fused" : "not fused", SCHEDULES[c->schedule], c->stages, c->microbatches,
           what);
}

bool mx_slices_refused(const char *message) {
  bool found = false;
  for (size_t i = 0; i < OPI_COUNT(REASONS); ++i)
    found = found || strstr(message, REASONS[i]) != NULL;
  return found;
}

/* Micro-batches are refused as they are without slices. */
static bool has_reason(const choice *c, const char *message) {
  return mx_slices_refused(message) ||
         (c->microbatches > 1 && (strstr(message, " of a request of ") != NULL ||
                                  strstr(message, "no input has a free dimension") != NULL ||
                                  strstr(message, "micro-batches along ") != NULL));
}

/* False: it was refused. */
static bool one_case(mx_model *m, const choice *c, const mx_result *uncut, mx_sliced *count) {
  const opipe_device_choice device = kit_place_device(&c->place);
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = c->stages,
                                    .devices = &device,
                                    .n_devices = c->place.device == NULL ? 0 : 1,
                                    .devices_stride = sizeof device,
                                    .n_microbatches = c->microbatches,
                                    .schedule = SCHEDULES[c->schedule],
                                    .transport = c->place.transport,
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  opipe_plan *plan = NULL;
  const bool made = m->api->plan_make(m->bound, &params, &plan, &m->err) == OPIPE_OK;
  if (!made && has_reason(c, m->err.message) &&
      !(mx_is_decoder(m->folder->name) && c->microbatches == 1)) {
    ++count->refused;
  } else {
    const char *wrong = made ? mx_case(m, plan, uncut) : m->err.message;
    if (wrong != NULL)
      fail(count, m, c, wrong);
    else
      ++count->passed;
  }
  m->api->plan_destroy(plan);
  return made;
}

/* Every stage count; schedules and micro-batches in turn, or all. Cases that are refused as a whole
 * are asked for once. */
static bool one_binding(mx_model *m, choice c, bool full, uint32_t turn, mx_sliced *count) {
  mx_result uncut = {.n = 0};
  bool any = false;
  if (mx_bind(m, c.set, c.fuse) != OPIPE_OK || mx_run_uncut(m, &uncut) != OPIPE_OK) {
    fail(count, m, &c, m->err.message);
    return false;
  }
  c.stages = c.microbatches = 1;
  any = one_case(m, &c, &uncut, count);
  for (c.stages = 2; any && c.stages <= (full ? (uint32_t)MX_RANKS : 3u); ++c.stages) {
    for (uint32_t i = 0; i < (full ? 2 * (uint32_t)OPI_COUNT(SCHEDULES) : 1u); ++i) {
      c.schedule = (turn + i + c.stages) % (uint32_t)OPI_COUNT(SCHEDULES);
      c.microbatches = 1 + (full ? i / (uint32_t)OPI_COUNT(SCHEDULES) : c.stages % 2);
      (void)one_case(m, &c, &uncut, count);
    }
  }
  mx_result_free(&uncut);
  return any;
}

static void one_folder(const char *name, const kit_place *places, uint32_t n_places, bool full,
                       uint32_t turn, mx_sliced *count) {
  opipe_error err = OPIPE_ERROR_INIT;
  mx_folder *folder = NULL;
  mx_model m = {.api = NULL};
  bool any = false;
  if (mx_folder_read(name, &folder, &err) < 0 || mx_open(&m, NULL, folder) != OPIPE_OK) {
    ++count->failed;
    OPI_FAIL("%s: %s%s", name, err.message, m.err.message);
  } else {
    const uint32_t n = full ? 2 * folder->n_sets : 1;
    for (uint32_t b = 0; b < n; ++b) {
      const choice c = {.set = b / 2,
                        .fuse = full ? b % 2 == 0 : turn % 2 == 0,
                        .place = places[(turn + b) % n_places]};
      any = one_binding(&m, c, full, turn + b, count) || any;
    }
  }
  count->models += any;
  mx_close(&m);
  mx_folder_free(folder);
}

void mx_slices(bool full, const kit_place *places, uint32_t n_places, mx_sliced *count) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  memset(count, 0, sizeof *count);
  for (size_t i = 0; i < n; ++i) {
    if (full || (mx_is_decoder(names[i]) && opi_test_covers((uint32_t)i, 4)) || i % 16 == 5)
      one_folder(names[i], places, n_places, full, (uint32_t)i, count);
  }
  (void)printf(
      "\n%u models in token slices: %u cases passed, %u failed, %u refused with a reason\n",
      count->models, count->passed, count->failed, count->refused);
}
