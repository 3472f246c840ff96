/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of planner `auto` for a question's model and machine, and a given plan beside it, both
 * played by the judge of `auto`. */
#include "partition/study/auto/auto.h"

#include <string.h>

#include "tests/bench/papers/engine.h"

enum { SIZES_MOST = 16, WORK_PRESET = 0 /* the planner's own */ };

/* All that have no text for an order; behind them the given plan's, and that of planner terapipe,
 * which no list of options has. */
enum { OWN_MOST = 2 };
static const char *const listed[] = {
    "gpipe",    "1f1b",  "interleaved", "looped-bfs", "chimera",        "2bw",
    "terapipe", "zb-h1", "zb-h2",       "zb-auto",    "zb-interleaved", "zbv",
    "v-half",   "v-min", "dualpipev",   "seq1f1b",    "sequential"};

/* Time of a pass of a block over a slice beyond its tokens: a third of a backward and forward of
 * the fewest tokens that are known. */
static double slice_ns(const opi_layers *layers) {
  enum { PASSES = 3, A_BLOCK = 1 };
  return layers->slices.n == 0 ? 0 : layers->slices.alone[A_BLOCK].ns / PASSES;
}

static opipe_status make_question(const json_t *question, const opi_cluster *cluster,
                                  const opi_plugins *plugins, const char **schedules, opi_auto *out,
                                  opipe_error *err) {
  uint32_t work = 0;
  memcpy(schedules, listed, sizeof listed);
  *out = (opi_auto){.plugins = plugins,
                    .schedules = schedules,
                    .n_schedules = OPI_COUNT(listed),
                    .mode = OPIPE_MODE_TRAIN,
                    .n_threads = 2,
                    .hypothetical = papers_flag(question, "hypothetical")};
  out->dtype =
      strstr(papers_text(question, "arch", ""), "fp16") != NULL ? OPIPE_FLOAT16 : OPIPE_FLOAT;
  OPI_TRY(papers_planning(question, cluster, &out->planning, err));
  OPI_TRY(papers_count(question, "work", WORK_PRESET, &work, err));
  out->work_most = work;
  return OPIPE_OK;
}

/* Micro-batches of 1, 2, 4 ... samples. */
static opipe_status make_layers(const json_t *question, opi_auto *io_auto, opi_layers **out,
                                opipe_error *err) {
  uint32_t samples[SIZES_MOST], n = 0;
  for (uint64_t k = 1; k <= io_auto->planning.batch && n < SIZES_MOST; k *= 2)
    samples[n++] = (uint32_t)k;
  OPI_TRY(papers_layers(question, io_auto->planning.cluster, samples, n, out, err));
  io_auto->planning.layers = *out;
  io_auto->causal = (*out)->slices.n > 0;
  io_auto->slice_ns = slice_ns(*out);
  return OPIPE_OK;
}

/* ---- the given plan ---- */

/* Equal stages or "ends", on "data" copies of "ranks" with tensor groups of "width"; copies of a
 * stage side by side, unless "pipeline_first". */
static opipe_status lay_out(const json_t *question, const opi_layers *layers, opi_strategy *s,
                            opipe_error *err) {
  static uint32_t ends[PAPERS_STAGES_MOST + 1];
  const bool copies_last = papers_flag(question, "pipeline_first");
  const uint32_t t = s->width, n = s->n_ranks;
  uint32_t *devices = OPI_ARENA_ARRAY(&s->arena, uint32_t, (size_t)s->pipelines * n * t);
  if (devices == NULL)
    return opi_fail_nomem(err, s->n_stages * sizeof *devices, "a plan");
  OPI_TRY(papers_ends(question, layers, s->n_stages, ends, err));
  for (uint32_t c = 0; c < s->pipelines; ++c) {
    for (uint32_t r = 0; r < n; ++r) {
      const uint32_t place = copies_last ? c * n + r : r * s->pipelines + c;
      for (uint32_t k = 0; k < t; ++k)
        devices[(c * n + r) * t + k] = place * t + k;
    }
  }
  s->rank_devices = devices;
  for (uint32_t k = 0; k < s->n_stages; ++k) {
    s->stages[k] = (opi_strategy_stage){.first = ends[k],
                                        .end = ends[k + 1],
                                        .n_devices = t,
                                        .devices = devices + (size_t)(k % n) * t};
  }
  return OPIPE_OK;
}

static opipe_status read_given(const json_t *question, const opi_auto *q, opi_strategy **out,
                               opipe_error *err) {
  const json_t *stages = json_object_get(question, "stages");
  const opi_layers *layers = q->planning.layers;
  uint32_t ranks = 1, chunks = 1;
  OPI_TRY(papers_count(question, "ranks", 1, &ranks, err));
  OPI_TRY(papers_count(question, "chunks", 1, &chunks, err));
  const uint32_t n = stages != NULL ? (uint32_t)json_array_size(stages) : ranks * chunks;
  if (n == 0 || n > PAPERS_STAGES_MOST || chunks == 0)
    return opi_fail(err, OPIPE_E_INVALID, "%u stages in %u chunks", n, chunks);
  OPI_TRY(opi_strategy_new("given", n, q->planning.allocator, out, err));
  opi_strategy *s = *out;
  s->schedule = papers_text(question, "schedule", "1f1b");
  s->chunks = chunks;
  s->recompute = strcmp(papers_text(question, "recompute", "none"), "none") != 0;
  s->sharded = papers_flag(question, "sharded");
  s->scattered = papers_flag(question, "scattered");
  OPI_TRY(papers_count(question, "samples", 1, &s->samples, err));
  OPI_TRY(papers_count(question, "microbatches", 1, &s->microbatches, err));
  OPI_TRY(papers_count(question, "data", 1, &s->pipelines, err));
  OPI_TRY(papers_count(question, "width", 1, &s->width, err));
  if (stages != NULL)
    return papers_stages(stages, q->planning.cluster, layers, s, err);
  s->n_ranks = ranks;
  return lay_out(question, layers, s, err);
}

/* ---- both ---- */

/* ", 31+1 replicas" of stages that have some, or their number where all have it. */
static void write_replicas(const opi_strategy *s, opi_text *text) {
  const uint32_t first = s->stages[0].n_devices / s->width;
  bool alike = true;
  for (uint32_t k = 1; k < s->n_stages; ++k)
    alike = alike && s->stages[k].n_devices / s->width == first;
  if (alike && first == 1)
    return;
  for (uint32_t k = 0; k < (alike ? 1 : s->n_stages); ++k)
    opi_text_printf(text, "%s%u", k == 0 ? ", " : "+", s->stages[k].n_devices / s->width);
  opi_text_puts(text, " replicas");
}

static void write_plan(const opi_strategy *s, opi_text *text) {
  opi_text_printf(text, "%s: %u of %u stages", s->schedule, s->pipelines, s->n_stages);
  write_replicas(s, text);
  if (s->width > 1)
    opi_text_printf(text, " x %u", s->width);
  opi_text_printf(text, ", %u micro-batches of %u%s%s", s->microbatches, s->samples,
                  s->recompute ? ", recomputed" : "", s->sharded ? ", sharded" : "");
}

static void write_answer(const opi_auto_answer *found, const opi_judged *given, opi_text *answer) {
  const opi_judged *best = &found->ranked[0].judged;
  opi_text plan;
  opi_text_init(&plan, opi_allocator_system());
  write_plan(found->ranked[0].strategy, &plan);
  opi_text_puts(answer, "{\"step_ms\": ");
  opi_json_double(answer, best->step_ns * 1e-6);
  opi_text_puts(answer, ", \"given_ms\": ");
  opi_json_double(answer, given->step_ns * 1e-6);
  opi_text_puts(answer, ", \"times\": ");
  opi_json_double(answer, given->step_ns / best->step_ns);
  opi_text_puts(answer, ", \"gap\": ");
  opi_json_double(answer, found->gap);
  opi_text_printf(answer, ", \"given_fits\": %s, \"simulated\": %u, \"candidates\": %u",
                  given->bytes <= given->cap_bytes ? "true" : "false", found->n_simulated,
                  found->n_candidates);
  opi_text_puts(answer, ", \"plan\": ");
  opi_text_json(answer, plan.failed ? "" : plan.data);
  opi_text_puts(answer, "}");
  opi_text_release(&plan);
}

/* The answer of TeraPipe's planner, if it has one. */
static opipe_status ask_terapipe(opi_auto *io_auto, const char **schedules, opi_strategy **out,
                                 opipe_error *err) {
  const opi_layers *layers = io_auto->planning.layers;
  opipe_error unused = OPIPE_ERROR_INIT;
  if (layers->slices.n == 0)
    return OPIPE_OK;
  const opipe_status status = opi_plan_terapipe(&io_auto->planning, out, &unused);
  if (status == OPIPE_OK)
    schedules[io_auto->n_schedules++] = (*out)->schedule;
  return status == OPIPE_E_NOMEM ? opi_fail_nomem(err, 1, "a planner") : OPIPE_OK;
}

opipe_status papers_auto(const json_t *question, const opi_cluster *cluster,
                         const opi_plugins *plugins, opi_text *answer, opipe_error *err) {
  const char *schedules[OPI_COUNT(listed) + OWN_MOST];
  opi_strategy *sliced = NULL;
  opi_auto q;
  opi_judged judged;
  opi_layers *layers = NULL;
  opi_strategy *given = NULL;
  opi_auto_answer *found = NULL;
  OPI_TRY(make_question(question, cluster, plugins, schedules, &q, err));
  opipe_status status = make_layers(question, &q, &layers, err);
  if (status == OPIPE_OK)
    status = read_given(question, &q, &given, err);
  if (status == OPIPE_OK)
    status = opi_strategy_judge(&q, given, &judged, err);
  if (status == OPIPE_OK) {
    schedules[q.n_schedules++] = given->schedule;
    status = ask_terapipe(&q, schedules, &sliced, err);
  }
  if (status == OPIPE_OK)
    status = opi_auto_search(&q, &found, err);
  if (status == OPIPE_OK)
    write_answer(found, &judged, answer);
  opi_auto_free(found);
  opi_strategy_free(given);
  opi_strategy_free(sliced);
  opi_layers_free(layers);
  return status;
}
