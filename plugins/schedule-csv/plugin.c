/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "csv": the compute order that a text says; the library reads the file and hands the text
 * over as the setting `text`. Ranks are its rows; stages, replicas, micro-batches, slices and parts
 * are what appears in it, and an instance lives in the row where its actions are. Whether the order
 * is complete and can run is proven by the library, as for every schedule.
 *
 * Forward form: the forwards of the text, in its order, without parts and versions; of a body that
 * begins with forwards of the next mini-batch, its prologue and its epilogue, one behind the other.
 */
#include "parse.h"

static const opipe_schedule_option options[] = {
    {"text", NULL, NULL, "one row per rank, one action per cell, as 2F0,2B0 (see the README)", 0, 0,
     't', 0},
    {"dialect", "opipe|torch|torch-old", "opipe",
     "torch-old: B is the input's gradient, BW the whole backward", 0, 0, 's', 0},
};

/* Extents that appear in a text. */
typedef struct extent {
  uint64_t actions;
  uint32_t stages, replicas, microbatches, slices, parts, versions;
} extent;

static opipe_status measure(void *ctx, const opipe_action *a, uint32_t step, opipe_error *err) {
  extent *e = (extent *)ctx;
  (void)step;
  (void)err;
  ++e->actions;
  e->stages = a->stage >= e->stages ? a->stage + 1 : e->stages;
  e->replicas = a->replica >= e->replicas ? a->replica + 1u : e->replicas;
  e->microbatches = a->microbatch >= e->microbatches ? a->microbatch + 1 : e->microbatches;
  e->slices = a->slice >= e->slices ? a->slice + 1u : e->slices;
  e->parts = a->part >= e->parts ? a->part + 1u : e->parts;
  e->versions = e->versions || a->version != 0 || (a->flags & OPIPE_ACTION_NEXT_STEP) != 0;
  return OPIPE_OK;
}

/* Fills in where instances live. */
static opipe_status settle(void *ctx, const opipe_action *a, uint32_t step, opipe_error *err) {
  const opipe_layout *layout = (const opipe_layout *)ctx;
  uint32_t *home = &layout->instance_rank[a->stage * layout->n_replicas + a->replica];
  if (*home != OPIPE_NONE && *home != a->rank) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'csv', rank %u, step %u: stage %u, replica %u already lives on "
                      "rank %u",
                      a->rank, step, a->stage, a->replica, *home);
  }
  *home = a->rank;
  return OPIPE_OK;
}

static opipe_status read_settings(const opipe_schedule_setting *settings, uint32_t n,
                                  const char **out_text, uint32_t *out_dialect, opipe_error *err) {
  const char *dialect = opipe_setting_find(settings, n, "dialect");
  *out_text = opipe_setting_find(settings, n, "text");
  *out_dialect =
      dialect != NULL && strcmp(dialect, "torch-old") == 0 ? CSV_B_IS_INPUT : CSV_B_IS_WHOLE;
  return *out_text != NULL ? OPIPE_OK
                           : opipe_fail(err, OPIPE_E_INVALID,
                                        "schedule 'csv' needs a text: name it as file:PATH");
}

static opipe_status check_request(const opipe_layout_request *request, const extent *e,
                                  uint32_t ranks, opipe_error *err) {
  static const char *const what[3] = {"ranks", "stages", "micro-batches"};
  const uint32_t asked[3] = {request->n_ranks, request->n_stages, request->n_microbatches};
  const uint32_t found[3] = {ranks, e->stages, e->microbatches};
  if (e->actions == 0)
    return opipe_fail(err, OPIPE_E_INVALID, "schedule 'csv': the text has no compute action");
  for (uint32_t i = 0; i < 3; ++i) {
    if (asked[i] != 0 && asked[i] != found[i]) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule 'csv': %u %s are asked for, the text has %u", asked[i], what[i],
                        found[i]);
    }
  }
  if ((uint64_t)e->stages * e->replicas > e->actions) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "schedule 'csv': %u stages x %u replicas, but only %llu actions: some "
                      "instance computes nothing",
                      e->stages, e->replicas, (unsigned long long)e->actions);
  }
  return OPIPE_OK;
}

static opipe_status settle_all(const char *text, uint32_t dialect, opipe_layout *layout,
                               opipe_error *err) {
  csv_head head = {0};
  const uint32_t n = layout->n_stages * layout->n_replicas;
  for (uint32_t i = 0; i < n; ++i)
    layout->instance_rank[i] = OPIPE_NONE;
  const opipe_status status = csv_parse(text, dialect, settle, layout, &head, err);
  for (uint32_t i = 0; status >= 0 && i < n; ++i) {
    if (layout->instance_rank[i] == OPIPE_NONE) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule 'csv': no action of stage %u, replica %u of %u stages x %u "
                        "replicas",
                        i / layout->n_replicas, i % layout->n_replicas, layout->n_stages,
                        layout->n_replicas);
    }
  }
  return status;
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  const char *text = NULL;
  uint32_t dialect = 0;
  csv_head head = {0};
  extent e = {0};
  const bool trains = request->mode == OPIPE_MODE_TRAIN;
  (void)self;
  if (request->mode > OPIPE_MODE_TRAIN) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "schedule 'csv' has no form for mode %u",
                      request->mode);
  }
  opipe_status status = read_settings(request->settings, request->n_settings, &text, &dialect, err);
  if (status >= 0)
    status = csv_parse(text, dialect, measure, &e, &head, err);
  if (status >= 0)
    status = check_request(request, &e, head.ranks, err);
  if (status < 0)
    return status;
  io_layout->n_ranks = head.ranks;
  io_layout->n_stages = e.stages;
  io_layout->n_replicas = e.replicas;
  io_layout->n_slices = e.slices;
  io_layout->n_parts = trains ? e.parts : 1;
  io_layout->versions = trains && e.versions ? OPIPE_VERSIONS_DOUBLE_BUFFERED : OPIPE_VERSIONS_ONE;
  io_layout->sync = head.sync;
  io_layout->in_flight = 0;
  io_layout->slice_lengths = NULL;
  if ((uint64_t)e.stages * e.replicas > io_layout->instance_room) {
    return opipe_fail(err, OPIPE_E_LIMIT, "schedule 'csv' needs room for %u x %u instances",
                      e.stages, e.replicas);
  }
  return settle_all(text, dialect, io_layout, err);
}

typedef struct sink {
  const opipe_schedule_problem *problem;
  opipe_emit_fn emit;
  void *ctx;
  uint32_t next; /* forward mode: the flag NEXT_STEP of the forwards at hand, or 0 */
} sink;

static opipe_status hand_on(void *ctx, const opipe_action *action, uint32_t step,
                            opipe_error *err) {
  const sink *s = (const sink *)ctx;
  opipe_action copy = *action;
  (void)step;
  if (s->problem->mode == OPIPE_MODE_FORWARD) {
    if (action->pass != OPIPE_PASS_FORWARD || (action->flags & OPIPE_ACTION_NEXT_STEP) != s->next)
      return OPIPE_OK;
    copy.flags = 0; /* nothing to overlap with */
    copy.version = 0;
  }
  return s->emit(s->ctx, &copy, 1, err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const char *text = NULL;
  uint32_t dialect = 0;
  csv_head head = {0};
  extent e = {0};
  sink s = {problem, emit, emit_ctx, OPIPE_ACTION_NEXT_STEP};
  const opipe_layout_request asked = {.n_microbatches = problem->n_microbatches};
  (void)self;
  opipe_status status = read_settings(problem->settings, problem->n_settings, &text, &dialect, err);
  if (status >= 0)
    status = csv_parse(text, dialect, measure, &e, &head, err);
  if (status >= 0) /* copies of the pipeline need not have equal shares */
    status = check_request(&asked, &e, head.ranks, err);
  if (status >= 0 && problem->mode == OPIPE_MODE_FORWARD && e.versions)
    status = csv_parse(text, dialect, hand_on, &s, &head, err);
  s.next = 0;
  return status < 0 ? status : csv_parse(text, dialect, hand_on, &s, &head, err);
}

OPIPE_SCHEDULE_TABLE(table, options, lay_out, plan);

OPIPE_STATELESS_PLUGIN(OPIPE_KIND_SCHEDULE, "csv", OPIPE_VERSION, "Apache-2.0",
                       "the order of a file, handed over as text", OPIPE_SCHEDULE_ID, table);
