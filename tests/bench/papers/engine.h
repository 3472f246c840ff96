/* SPDX-License-Identifier: Apache-2.0 */
/* What the parts of papers_engine share. */
#ifndef PAPERS_ENGINE_H
#define PAPERS_ENGINE_H

#include "partition/arch/arch.h"
#include "partition/json/json.h"
#include "partition/search/planners/strategy.h"
#include "partition/simulate/stage_loads.h"

enum { PAPERS_STAGES_MOST = 4096, PAPERS_SLICES_MOST = 2048 };

/* Of a question (JSON): numbers with a default; errors name the key. */
opipe_status papers_number(const json_t *question, const char *key, double without, double *out,
                           opipe_error *err);
opipe_status papers_count(const json_t *question, const char *key, uint32_t without, uint32_t *out,
                          opipe_error *err);
const char *papers_text(const json_t *question, const char *key, const char *without);
bool papers_flag(const json_t *question, const char *key);

/* ---- models.c ---- */

/* "arch" (with "tokens": of a sequence of so many instead), or "profile", a file, with "samples" of
 * its micro-batch and "first", the layer to begin with. Times are of the cluster's first device.
 * samples: of a micro-batch. The caller's. */
opipe_status papers_layers(const json_t *question, const opi_cluster *cluster, uint32_t samples,
                           uint32_t tokens, opi_layers **out_layers, opipe_error *err);
/* A transformer's sequences of fewer tokens than all, and what attention to earlier ones adds;
 * released by papers_tokens_release. */
typedef struct papers_tokens {
  opi_token_profile profile;
  const opi_layers **at;
  uint32_t *tokens;
} papers_tokens;
opipe_status papers_tokens_make(const json_t *question, const opi_cluster *cluster,
                                papers_tokens *out, opipe_error *err);
void papers_tokens_release(papers_tokens *tokens);

/* ---- plans.c: "ask": "evaluate", "plan", "slices" ---- */

/* Cost of given stages by DAPPLE's recursion; what a planner answers; lengths of token slices.
 * Each appends one JSON object. */
opipe_status papers_evaluate(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                             opipe_error *err);
opipe_status papers_plan(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                         opipe_error *err);
opipe_status papers_slices(const json_t *question, const opi_cluster *cluster, opi_text *answer,
                           opipe_error *err);

#endif /* PAPERS_ENGINE_H */
