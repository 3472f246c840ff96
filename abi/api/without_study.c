/* SPDX-License-Identifier: Apache-2.0 */
/* The slots of partition/study in a build without it: each answers UNSUPPORTED, so that the table
 * keeps its length. */
#include "abi/api/study.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

const opi_order_search *opi_study_order_search(void) {
  return NULL;
}

uint32_t opi_study_search_options(const opipe_schedule_option **out_options,
                                  const char **out_summary) {
  *out_options = NULL;
  *out_summary = NULL;
  return 0;
}

opipe_status opi_study_order(opi_context_object *context, const opi_question *question,
                             uint32_t flags, opi_order **out_order, opipe_error *err) {
  return opi_fail(err, OPIPE_E_UNSUPPORTED, "schedule '%.60s': built without the study",
                  question->schedule == NULL ? "search" : question->schedule);
}

opipe_status opi_study_bound(const opi_order *order, const opi_costs *costs, double *out_bound,
                             opipe_error *err) {
  return opi_without_study("a bound", err);
}

opipe_status opi_study_order_page(const opi_order *order, const opi_costs *costs,
                                  const opi_simulation *result, const char *figures,
                                  const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                                  opipe_error *err) {
  return opi_without_study("an HTML page", err);
}

opipe_status opi_study_take_cluster(opi_arena *arena, opipe_plan_params *io_params,
                                    opipe_error *err) {
  return io_params->cluster == NULL ? OPIPE_OK : opi_without_study("plan_make, a cluster", err);
}

/* No handle of theirs is ever made. */
void opi_profile_unref(void *profile) {}
void opi_strategy_unref(void *strategy) {}

opipe_status opi_api_cluster_find(opi_context_object *context, const char *spec,
                                  opipe_write_fn write, void *ctx, opipe_error *err) {
  return opi_without_study("cluster_find", err);
}
opipe_status opi_api_cluster_of_machine(opi_context_object *context,
                                        const opipe_machine_params *params, opipe_write_fn write,
                                        void *ctx, opipe_error *err) {
  return opi_without_study("cluster_of_machine", err);
}
opipe_status opi_api_profile_of_model(opi_model_object *model, const opipe_profile_params *params,
                                      opipe_profile **out_profile, opipe_error *err) {
  return opi_without_study("profile_of_model", err);
}
opipe_status opi_api_profile_of_arch(opi_context_object *context, const char *arch,
                                     const opipe_profile_params *params,
                                     opipe_profile **out_profile, opipe_error *err) {
  return opi_without_study("profile_of_arch", err);
}
opipe_status opi_api_profile_read(opi_context_object *context, const void *text, uint64_t n_bytes,
                                  const char *name, uint32_t samples, opipe_profile **out_profile,
                                  opipe_error *err) {
  return opi_without_study("profile_read", err);
}
opipe_status opi_api_profile_describe(opi_profile_object *profile, uint32_t format,
                                      opipe_write_fn write, void *ctx, opipe_error *err) {
  return opi_without_study("profile_describe", err);
}
opipe_status opi_api_profile_info(opi_profile_object *profile, opipe_profile_info *io_info,
                                  opipe_error *err) {
  return opi_without_study("profile_info", err);
}
opipe_status opi_api_profile_layer(opi_profile_object *profile, uint32_t index, uint32_t samples,
                                   opipe_layer_info *io_info, opipe_error *err) {
  return opi_without_study("profile_layer", err);
}
opipe_status opi_api_strategy_make(opi_profile_object *profile, const opipe_strategy_params *params,
                                   opipe_strategy **out_strategy, opipe_error *err) {
  return opi_without_study("strategy_make", err);
}
opipe_status opi_api_strategy_ranked(opi_strategy_object *strategy, uint32_t index,
                                     opipe_strategy **out_strategy, opipe_error *err) {
  return opi_without_study("strategy_ranked", err);
}
opipe_status opi_api_strategy_describe(opi_strategy_object *strategy, uint32_t format,
                                       opipe_write_fn write, void *ctx, opipe_error *err) {
  return opi_without_study("strategy_describe", err);
}
opipe_status opi_api_strategy_info(opi_strategy_object *strategy, opipe_strategy_info *io_info,
                                   opipe_error *err) {
  return opi_without_study("strategy_info", err);
}
opipe_status opi_api_strategy_stage(opi_strategy_object *strategy, uint32_t index,
                                    opipe_strategy_stage_info *io_info, opipe_error *err) {
  return opi_without_study("strategy_stage", err);
}
opipe_status opi_api_strategy_play(opi_strategy_object *strategy, const opipe_play_params *params,
                                   uint32_t format, opipe_write_fn write, void *ctx,
                                   opipe_error *err) {
  return opi_without_study("strategy_play", err);
}
opipe_status opi_api_strategy_plan(opi_strategy_object *strategy, opipe_model *model,
                                   const opipe_plan_params *params, opipe_plan **out_plan,
                                   opipe_error *err) {
  return opi_without_study("strategy_plan", err);
}
opipe_status opi_api_order_play(opi_order_object *order, const opipe_order_costs *costs,
                                const opipe_play_params *params, uint32_t format,
                                opipe_write_fn write, void *ctx, opipe_error *err) {
  return opi_without_study("order_play", err);
}
opipe_status opi_api_plan_play(opi_plan_object *plan, const opipe_play_params *params,
                               uint32_t format, opipe_write_fn write, void *ctx, opipe_error *err) {
  return opi_without_study("plan_play", err);
}
opipe_status opi_api_plan_file_play(opi_context_object *context, const void *json, uint64_t n_bytes,
                                    const opipe_play_params *params, uint32_t format,
                                    opipe_write_fn write, void *ctx, opipe_error *err) {
  return opi_without_study("plan_file_play", err);
}
opipe_status opi_api_plans_compare(opi_context_object *context, const void *a, uint64_t a_bytes,
                                   const char *a_name, const void *b, uint64_t b_bytes,
                                   const char *b_name, uint32_t format, opipe_write_fn write,
                                   void *ctx, opipe_error *err) {
  return opi_without_study("plans_compare", err);
}
