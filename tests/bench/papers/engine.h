/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the parts of papers_engine. */
#ifndef PAPERS_ENGINE_H
#define PAPERS_ENGINE_H

#include "loader/base/json.h"
#include "partition/schedule/ask.h"
#include "partition/study/arch/arch.h"
#include "partition/study/planners/strategy.h"
#include "partition/study/simulate/stage_loads.h"

enum { PAPERS_STAGES_MOST = 4096, PAPERS_SLICES_MOST = 2048 };

/* Numbers of a question (JSON), with a default; errors name the key. */
opipe_status papers_number(const json_t *question, const char *key, double without, double *out,
                           opipe_error *err);
opipe_status papers_count(const json_t *question, const char *key, uint32_t without, uint32_t *out,
                          opipe_error *err);
const char *papers_text(const json_t *question, const char *key, const char *without);
bool papers_flag(const json_t *question, const char *key);

/* "ends", of stages; without it these have equally many blocks: out_ends [n_stages + 1]. */
opipe_status papers_ends(const json_t *question, const opi_layers *layers, uint32_t n_stages,
                         uint32_t *out_ends, opipe_error *err);

/* ---- models.c ---- */

/* "arch", or "profile", a file, with "samples" of its micro-batch and "first", the layer to begin
 * with. Times are of the cluster's first device, for samples [n_sizes] of a micro-batch. The
 * caller's. */
opipe_status papers_layers(const json_t *question, const opi_cluster *cluster,
                           const uint32_t *samples, uint32_t n_sizes, opi_layers **out_layers,
                           opipe_error *err);

/* ---- slices.c ---- */

/* "slices": "planned" or how many even ones, of the question's "microbatches" rows over stages that
 * end at `ends`; "together", the most rows in one (1), "unit" (8). False in *out_any: not asked
 * for. */
opipe_status papers_cut_tokens(const json_t *question, const opi_cluster *cluster,
                               const opi_layers *layers, const uint32_t *ends, uint32_t n_stages,
                               bool *out_any, opi_slicing *out_slicing, opipe_error *err);
/* Share of a stage's times that each slice of the lengths takes, computing alone: out [n].
 * whole_ns: of the stage. */
opipe_status papers_slice_times(const json_t *question, const opi_cluster *cluster,
                                const opi_layers *layers, const uint32_t *ends, uint32_t stage,
                                uint32_t samples, const uint32_t *lengths, uint32_t n,
                                double whole_ns, double *out, opipe_error *err);
/* "8 x [384, 384, ...]" */
void papers_write_slicing(const opi_slicing *slicing, opi_text *text);

/* ---- plans.c, slices.c, auto.c: "ask": "evaluate", "plan", "slices", "auto" ---- */

/* Cost of given stages by DAPPLE's recursion; what a planner answers; lengths of token slices; what
 * planner `auto` finds, and how it compares with a given plan. Each appends one JSON object.
 * papers_planning: "batch", "samples", "devices", "state"; layers are left out. */
opipe_status papers_planning(const json_t *question, const opi_cluster *cluster, opi_planning *out,
                             opipe_error *err);
/* [[first, end, "0-5,8"], ...]: stages and devices of a strategy of as many. */
opipe_status papers_stages(const json_t *list, const opi_cluster *cluster, const opi_layers *layers,
                           opi_strategy *io_strategy, opipe_error *err);
opipe_status papers_evaluate(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                             opipe_error *err);
opipe_status papers_plan(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                         opipe_error *err);
opipe_status papers_slices(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                           opipe_error *err);
opipe_status papers_auto(const json_t *question, const opi_cluster *cluster,
                         const opi_plugins *plugins, opi_text *answer, opipe_error *err);

#endif /* PAPERS_ENGINE_H */
