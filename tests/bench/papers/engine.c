/* SPDX-License-Identifier: Apache-2.0 */
/* papers_engine FOLDER: answers questions about papers' configurations. One JSON array of questions
 * on stdin, one of answers on stdout; an answer that there is none is {"error": "..."}. FOLDER has
 * clusters by name; schedules are plugins of $OPIPE_PLUGIN_PATH.
 *
 * "ask": "play" (the default): the order of a schedule, lowered, proven and played on a cluster
 * with what a model's stages take; "evaluate", "plan": plans.c; "slices": slices.c;
 * "auto": auto.c.
 */
#include "tests/bench/papers/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/api/plugins.h"
#include "partition/study/simulate/baselines.h"

enum { INPUT_MOST = 64 << 20 };

/* ---- questions ---- */

opipe_status papers_number(const json_t *question, const char *key, double without, double *out,
                           opipe_error *err) {
  const json_t *value = json_object_get(question, key);
  *out = value == NULL ? without : json_number_value(value);
  return value == NULL || json_is_number(value)
             ? OPIPE_OK
             : opi_fail(err, OPIPE_E_INVALID, "'%s' is no number", key);
}

opipe_status papers_count(const json_t *question, const char *key, uint32_t without, uint32_t *out,
                          opipe_error *err) {
  double value = 0;
  OPI_TRY(papers_number(question, key, without, &value, err));
  if (!(value >= 0) || value > UINT32_MAX / 2)
    return opi_fail(err, OPIPE_E_INVALID, "'%s' is %g", key, value);
  *out = (uint32_t)value;
  return OPIPE_OK;
}

const char *papers_text(const json_t *question, const char *key, const char *without) {
  const char *text = json_string_value(json_object_get(question, key));
  return text == NULL ? without : text;
}

bool papers_flag(const json_t *question, const char *key) {
  return json_is_true(json_object_get(question, key));
}

/* ---- play ---- */

typedef struct player {
  const json_t *question;
  const opi_cluster *cluster;
  const opi_plugins *plugins;
  opi_layers *layers;
  const char *schedule;
  opi_slicing slicing; /* where token slices were chosen here */
  opi_order *order, *lowered;
  uint32_t ranks, chunks, n_stages, n_microbatches, samples;
  uint32_t ends[PAPERS_STAGES_MOST + 1], keep[PAPERS_STAGES_MOST];
  bool again[PAPERS_STAGES_MOST];
  opi_stage_load loads[PAPERS_STAGES_MOST];
  double slice_times[PAPERS_SLICES_MOST];
  opi_order_play how;
  opi_arena arena;
  opipe_error *err;
} player;

opipe_status papers_ends(const json_t *question, const opi_layers *layers, uint32_t n_stages,
                         uint32_t *out_ends, opipe_error *err) {
  const json_t *ends = json_object_get(question, "ends");
  if (ends == NULL) {
    return opi_even_stages(layers, n_stages, out_ends)
               ? OPIPE_OK
               : opi_fail(err, OPIPE_E_INVALID, "%u layers in %u even stages", layers->n_layers,
                          n_stages);
  }
  if (json_array_size(ends) != n_stages)
    return opi_fail(err, OPIPE_E_INVALID, "'ends': %zu of %u", json_array_size(ends), n_stages);
  out_ends[0] = 0;
  for (uint32_t s = 0; s < n_stages; ++s)
    out_ends[s + 1] = (uint32_t)json_integer_value(json_array_get(ends, s));
  return OPIPE_OK;
}

/* "recompute": "stage" or "layers"; with "last_keeps" the last stage computes nothing again. */
static opipe_status read_recompute(player *p) {
  const char *what = papers_text(p->question, "recompute", "none");
  const bool stage = strcmp(what, "stage") == 0, layers = strcmp(what, "layers") == 0;
  if (!stage && !layers && strcmp(what, "none") != 0)
    return opi_fail(p->err, OPIPE_E_INVALID, "'recompute' is %s", what);
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    const bool last = s + 1 == p->n_stages && papers_flag(p->question, "last_keeps");
    p->again[s] = (stage || layers) && !last;
    p->keep[s] = !p->again[s] ? OPI_KEEP_ALL : stage ? OPI_KEEP_STAGE : OPI_KEEP_LAYERS;
  }
  return OPIPE_OK;
}

static opipe_status read_loads(player *p) {
  opi_stage_question q = {.layers = p->layers,
                          .ends = p->ends,
                          .keep = p->keep,
                          .n_stages = p->n_stages,
                          .samples = p->samples,
                          .bandwidth = p->cluster->descriptions[0].bandwidth};
  OPI_TRY(papers_count(p->question, "width", 1, &q.width, p->err));
  OPI_TRY(papers_number(p->question, "state", 4, &q.state_bytes, p->err));
  OPI_TRY(papers_number(p->question, "gradient", 1, &q.gradient_bytes, p->err));
  OPI_TRY(papers_number(p->question, "update", 0, &q.update_bytes, p->err));
  return opi_stage_loads(&q, p->loads, p->err);
}

static opipe_status ask_order(player *p) {
  static double forward[PAPERS_STAGES_MOST], input[PAPERS_STAGES_MOST], weight[PAPERS_STAGES_MOST];
  for (uint32_t s = 0; s < p->n_stages; ++s) {
    forward[s] = p->loads[s].forward_ns * 1e-6;
    input[s] = p->loads[s].input_ns * 1e-6 + (p->again[s] ? forward[s] : 0);
    weight[s] = p->loads[s].weight_ns * 1e-6;
  }
  const opi_costs costs = {.stage_forward = forward,
                           .stage_input = input,
                           .stage_weight = weight,
                           .n_stages = p->n_stages};
  const opi_question q = {.schedule = p->schedule,
                          .mode = OPIPE_MODE_TRAIN,
                          .n_ranks = p->ranks,
                          .n_stages = p->n_stages,
                          .n_microbatches = p->n_microbatches,
                          .costs = &costs};
  if (strcmp(p->schedule, "gems") == 0)
    return opi_order_gems(p->ranks, p->n_microbatches, opi_allocator_system(), &p->order, p->err);
  if (strcmp(p->schedule, "pipedream") == 0)
    return opi_order_pipedream(p->ranks, opi_allocator_system(), &p->order, p->err);
  return opi_order_ask(p->plugins, &q, opi_allocator_system(), &p->order, p->err);
}

static opipe_status add_recompute(player *p) {
  opi_order *order = p->order;
  opi_do_list *list = NULL;
  OPI_TRY(opi_pass_recompute(order->list, p->again, opi_allocator_system(), &list, p->err));
  opi_do_list_free(order->list);
  order->list = list;
  return OPIPE_OK;
}

/* Rows and lengths of "slices" become micro-batches and the schedule's option. */
static opipe_status cut_tokens(player *p) {
  const opi_slice_group *first = NULL;
  opi_text text;
  bool any = false;
  p->schedule = papers_text(p->question, "schedule", "1f1b");
  OPI_TRY(papers_cut_tokens(p->question, p->cluster, p->layers, p->ends, p->n_stages, &any,
                            &p->slicing, p->err));
  if (!any)
    return OPIPE_OK;
  first = &p->slicing.groups[0];
  opi_text_init(&text, opi_allocator_system());
  for (uint32_t k = 0; k < first->n_slices; ++k)
    opi_text_printf(&text, "%s%u", k == 0 ? ":lengths=" : "+", first->lengths[k]);
  p->schedule = text.failed ? NULL : opi_arena_printf(&p->arena, "%s%s", p->schedule, text.data);
  opi_text_release(&text);
  p->samples = first->rows;
  p->n_microbatches = p->slicing.n_groups;
  return p->schedule == NULL ? opi_fail_nomem(p->err, 1, "a schedule") : OPIPE_OK;
}

/* Reads each slice's share of a whole micro-batch's time, in a stage of the middle; sums and
 * messages apart. */
static opipe_status read_slices(player *p) {
  const opi_problem *problem = &p->order->problem;
  const uint32_t stage = p->n_stages / 2;
  const opi_stage_load *load = &p->loads[stage];
  if (problem->n_slices == 1 || problem->slice_lengths == NULL)
    return OPIPE_OK;
  if (problem->n_slices > PAPERS_SLICES_MOST)
    return opi_fail(p->err, OPIPE_E_LIMIT, "%u slices", problem->n_slices);
  OPI_TRY(papers_slice_times(p->question, p->cluster, p->layers, p->ends, stage, p->samples,
                             problem->slice_lengths, problem->n_slices,
                             load->forward_ns + load->input_ns + load->weight_ns, p->slice_times,
                             p->err));
  p->how.slice_times = p->slice_times;
  return OPIPE_OK;
}

static opipe_status read_how(player *p) {
  const json_t *q = p->question;
  const char *collective = papers_text(q, "collective", "auto");
  uint32_t data = 1, width = 1;
  OPI_TRY(papers_count(q, "data", 1, &data, p->err));
  OPI_TRY(papers_count(q, "width", 1, &width, p->err));
  p->how = (opi_order_play){
      .cluster = p->cluster,
      .stages = p->loads,
      .n_tensor = width,
      .n_data = data,
      .place = papers_flag(q, "pipeline_first") ? OPI_PLACE_TENSOR_PIPELINE_DATA
                                                : OPI_PLACE_TENSOR_DATA_PIPELINE,
      .dtype = strstr(papers_text(q, "arch", ""), "fp16") != NULL ? OPIPE_FLOAT16 : OPIPE_FLOAT,
      .sharded = papers_flag(q, "sharded"),
      .scattered = papers_flag(q, "scattered"),
      .recomputes_late = !papers_flag(q, "recomputes_early"),
      .updates_each = papers_flag(q, "updates_each"),
      .updates_beside = papers_flag(q, "updates_beside"),
      .waits_for_reductions = papers_flag(q, "waits")};
  return opi_collective_parse(collective, &p->how.collective)
             ? OPIPE_OK
             : opi_fail(p->err, OPIPE_E_INVALID, "'collective' is %s", collective);
}

static void write_slices(const opi_slicing *slicing, opi_text *answer) {
  const opi_slice_group *first = &slicing->groups[0];
  bool falls = true;
  for (uint32_t k = 1; k < first->n_slices; ++k)
    falls = falls && first->lengths[k] <= first->lengths[k - 1];
  opi_text_puts(answer, ", \"slices\": \"");
  papers_write_slicing(slicing, answer);
  opi_text_printf(answer, "\", \"long_to_short\": %s, \"n_slices\": %u", falls ? "true" : "false",
                  first->n_slices);
}

static void write_played(const player *p, const opi_order_played *played, opi_text *answer) {
  const uint32_t n_classes = played->result.n_classes;
  const double step = played->step_ns * 1e-9;
  const uint64_t room = p->cluster->descriptions[0].memory_bytes;
  double peak = 0, least = -1;
  for (uint32_t rank = 0; rank < played->play.n_lists; ++rank) {
    for (uint32_t k = 0; k < n_classes; ++k) {
      const double bytes =
          played->fixed_bytes[rank] + played->result.peak_bytes[rank * n_classes + k];
      peak = bytes > peak ? bytes : peak;
      least = least < 0 || bytes < least ? bytes : least;
    }
  }
  const double n = (double)p->order->problem.n_microbatches * p->how.n_data * p->samples;
  opi_text_printf(answer, "{\"step_ms\": ");
  opi_json_double(answer, step * 1e3);
  opi_text_printf(answer, ", \"samples_per_s\": ");
  opi_json_double(answer, step > 0 ? n / step : 0);
  opi_text_printf(answer, ", \"bubble\": ");
  opi_json_double(answer, played->bubble);
  opi_text_printf(answer, ", \"bubble_overhead\": ");
  opi_json_double(answer, played->bubble_overhead);
  opi_text_printf(answer, ", \"utilisation\": ");
  opi_json_double(answer, played->utilisation);
  opi_text_printf(answer, ", \"peak_bytes\": ");
  opi_json_double(answer, peak);
  opi_text_printf(answer, ", \"least_bytes\": ");
  opi_json_double(answer, least);
  opi_text_printf(answer,
                  ", \"devices\": %u, \"fits\": %s, \"stage_forward_ms\": ", played->n_ranks,
                  room == 0 || peak <= (double)room ? "true" : "false");
  opi_json_double(answer, p->loads[p->n_stages / 2].forward_ns * 1e-6);
  if (p->slicing.groups != NULL)
    write_slices(&p->slicing, answer);
  opi_text_puts(answer, "}");
}

static opipe_status play(player *p, opi_text *answer) {
  const opi_lowering how = {.receive_depth = 1};
  opi_proof proof = {0};
  opi_order_played played;
  OPI_TRY(papers_count(p->question, "ranks", 1, &p->ranks, p->err));
  OPI_TRY(papers_count(p->question, "chunks", 1, &p->chunks, p->err));
  OPI_TRY(papers_count(p->question, "microbatches", 1, &p->n_microbatches, p->err));
  OPI_TRY(papers_count(p->question, "samples", 1, &p->samples, p->err));
  p->n_stages = p->ranks * p->chunks;
  if (p->n_stages == 0 || p->n_stages > PAPERS_STAGES_MOST || p->samples == 0)
    return opi_fail(p->err, OPIPE_E_INVALID, "%u stages of %u samples", p->n_stages, p->samples);
  OPI_TRY(papers_layers(p->question, p->cluster, &p->samples, 1, &p->layers, p->err));
  OPI_TRY(papers_ends(p->question, p->layers, p->n_stages, p->ends, p->err));
  OPI_TRY(cut_tokens(p));
  OPI_TRY(read_recompute(p));
  OPI_TRY(read_loads(p));
  OPI_TRY(read_how(p));
  OPI_TRY(ask_order(p));
  OPI_TRY(read_slices(p));
  OPI_TRY(add_recompute(p));
  OPI_TRY(opi_order_lower(p->order, &how, opi_allocator_system(), &p->lowered, p->err));
  const opi_problem *problem = &p->lowered->problem;
  OPI_TRY(opi_proof_check(problem, p->lowered->list, OPI_RULE_TAG, opi_allocator_system(), &proof,
                          p->err));
  OPI_TRY(opi_order_play_run(problem, p->lowered->list, &p->how, &p->arena, &played, p->err));
  write_played(p, &played, answer);
  opi_order_played_release(&played, p->lowered->list);
  return OPIPE_OK;
}

static opipe_status play_order(const json_t *question, const opi_cluster *cluster,
                               const opi_plugins *plugins, opi_text *answer, opipe_error *err) {
  static player p; /* large */
  memset(&p, 0, sizeof p);
  p.question = question;
  p.cluster = cluster;
  p.plugins = plugins;
  p.err = err;
  opi_arena_init(&p.arena, opi_allocator_system(), 0);
  const opipe_status status = play(&p, answer);
  opi_slicing_free(&p.slicing);
  opi_layers_free(p.layers);
  opi_order_free(p.order);
  opi_order_free(p.lowered);
  opi_arena_release(&p.arena);
  return status;
}

/* ---- all of them ---- */

static opipe_status ask(const json_t *question, const char *folder, const opi_plugins *plugins,
                        opi_arena *arena, opi_text *answer, opipe_error *err) {
  const char *name = papers_text(question, "cluster", ""),
             *what = papers_text(question, "ask", "play");
  opi_cluster cluster;
  opi_text text;
  opi_text_init(&text, opi_allocator_system());
  opipe_status status = opi_cluster_find(name, &folder, 1, &text, err);
  if (status == OPIPE_OK)
    status = opi_cluster_read(name, text.data, text.n, arena, &cluster, err);
  opi_text_release(&text);
  if (status < 0)
    return status;
  if (strcmp(what, "play") == 0)
    return play_order(question, &cluster, plugins, answer, err);
  if (strcmp(what, "evaluate") == 0)
    return papers_evaluate(question, &cluster, answer, err);
  if (strcmp(what, "plan") == 0)
    return papers_plan(question, &cluster, answer, err);
  if (strcmp(what, "slices") == 0)
    return papers_slices(question, &cluster, answer, err);
  if (strcmp(what, "auto") == 0)
    return papers_auto(question, &cluster, plugins, answer, err);
  return opi_fail(err, OPIPE_E_INVALID, "'ask' is %s", what);
}

/* False: stdout is closed. */
static bool answer_one(const json_t *question, const char *folder, const opi_plugins *plugins,
                       bool first) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  opi_text answer;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  opi_text_init(&answer, opi_allocator_system());
  const opipe_status status = ask(question, folder, plugins, &arena, &answer, &err);
  if (status < 0) {
    opi_text_release(&answer);
    opi_text_init(&answer, opi_allocator_system());
    opi_text_puts(&answer, "{\"error\": ");
    opi_text_json(&answer, err.message);
    opi_text_puts(&answer, "}");
  }
  const bool good = !answer.failed && printf("%s%s", first ? "[" : ",\n", answer.data) > 0;
  opi_text_release(&answer);
  opi_arena_release(&arena);
  return good;
}

static bool answer_all(const json_t *questions, const char *folder, const opi_plugins *plugins) {
  bool good = json_array_size(questions) > 0;
  for (size_t i = 0; i < json_array_size(questions) && good; ++i)
    good = answer_one(json_array_get(questions, i), folder, plugins, i == 0);
  return good && printf("]\n") > 0 && fflush(stdout) == 0;
}

int main(int argc, char **argv) {
  const opi_registry_params params = {.allocator = opi_allocator_system()};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_registry *registry = NULL;
  json_t *questions = json_loadf(stdin, 0, NULL);
  bool good = argc == 2 && json_is_array(questions);
  if (!good)
    (void)fprintf(stderr, "usage: papers_engine FOLDER < QUESTIONS, a JSON array\n");
  else if (opi_registry_create(&params, &registry, &err) < 0)
    good = fprintf(stderr, "papers_engine: %s\n", err.message) < 0;
  if (good) {
    const opi_plugins plugins = opi_registry_plugins(registry);
    good = answer_all(questions, argv[1], &plugins);
  }
  opi_registry_free(registry);
  json_decref(questions);
  return good ? 0 : 1;
}
