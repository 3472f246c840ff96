/* SPDX-License-Identifier: Apache-2.0 */
/* The schedules of the family: layout, options, and how the order is made.
 *
 *   zb-h1           W later by p - 1 micro-batches; bubble (p-1)(F + I - W), stash p
 *   zb-h2           twice the warm-up; no gap within a rank, stash 2p - 1
 *   zb-auto         the shortest order found under a limit, for the costs at hand
 *   zb-interleaved  several stages per rank, one warm-up forward per hop
 *   zbv             two stages per rank in a V; stash p, no gap within a rank
 *   v-half, v-min   a V in blocks; about a half and a third of the stash
 */
#include <stdlib.h>

#include "zb.h"

typedef opipe_status (*make_fn)(zb_job *job, opipe_error *err);

typedef struct member {
  const char *id;
  make_fn make;   /* fills job->best */
  uint32_t place; /* OPIPE_PLACE_*; V: 2 stages per rank */
  uint32_t n_options;
  opipe_schedule_option option;
} member;

static opipe_status make_h1(zb_job *job, opipe_error *err) {
  (void)err;
  zb_lagged(&job->model, 1, &job->best);
  return OPIPE_OK;
}

static opipe_status make_h2(zb_job *job, opipe_error *err) {
  (void)err;
  zb_lagged(&job->model, 2, &job->best);
  return OPIPE_OK;
}

static opipe_status make_interleaved(zb_job *job, opipe_error *err) {
  (void)err;
  zb_interleaved(&job->model, &job->best);
  return OPIPE_OK;
}

/* ---- zb-auto ---- */

static opipe_status read_limit(const opipe_schedule_problem *problem, double *out_units,
                               opipe_error *err) {
  const char *text = opipe_setting_find(problem->settings, problem->n_settings, "memory");
  char *end = NULL;
  *out_units = text == NULL ? 1 : strtod(text, &end);
  if (text != NULL && (end == text || *end != '\0' || !(*out_units >= 0))) {
    return opipe_fail(err, OPIPE_E_INVALID, "schedule 'zb-auto': memory=%s is not a number >= 0",
                      text);
  }
  return OPIPE_OK;
}

static opipe_status make_auto(zb_job *job, opipe_error *err) {
  double units = 0;
  opipe_status status = read_limit(job->problem, &units, err);
  if (status >= 0) {
    zb_model_limit(&job->model, units);
    status = zb_model_check(&job->model, "zb-auto", err);
  }
  if (status < 0)
    return status;
  for (uint32_t ahead = 1; ahead <= 2; ++ahead) {
    zb_order_clear(&job->model, &job->trial[0]);
    zb_lagged(&job->model, ahead, &job->trial[0]);
    (void)zb_offer(job, 0);
  }
  zb_search(job);
  zb_improve(job);
  return OPIPE_OK;
}

/* ---- zbv ---- */

/* No rank may keep more than the fullest one does in the last replay. */
static void limit_to_peak(zb_job *job) {
  uint64_t top = 0;
  for (uint32_t r = 0; r < job->model.n_ranks; ++r)
    top = job->scratch.peak[r] > top ? job->scratch.peak[r] : top;
  for (uint32_t r = 0; r < job->model.n_ranks; ++r)
    job->model.cap[r] = job->model.cap[r] < top ? job->model.cap[r] : top;
}

static bool is_hand_made(const opipe_schedule_problem *problem) {
  const char *order = opipe_setting_find(problem->settings, problem->n_settings, "order");
  return order != NULL && strcmp(order, "torch") == 0;
}

/* order=torch: the hand-made order in four phases. order=greedy: the shortest order found that
 * keeps no more than the hand-made one on its fullest rank; the latter is among the candidates. */
static opipe_status make_v(zb_job *job, opipe_error *err) {
  zb_v_phases(&job->model, &job->best);
  if (is_hand_made(job->problem))
    return OPIPE_OK;
  job->score = zb_replay(&job->model, &job->best, &job->scratch);
  limit_to_peak(job);
  const opipe_status status = zb_model_check(&job->model, "zbv", err);
  if (status >= 0) {
    zb_search(job);
    zb_improve(job);
  }
  return status;
}

static opipe_status make_v_half(zb_job *job, opipe_error *err) {
  return zb_v_blocks(job, false, "v-half", err);
}

static opipe_status make_v_min(zb_job *job, opipe_error *err) {
  return zb_v_blocks(job, true, "v-min", err);
}

/* ---- the table ---- */

static const member members[] = {
    {"zb-h1", make_h1, OPIPE_PLACE_LOOP, 0, {0}},
    {"zb-h2", make_h2, OPIPE_PLACE_LOOP, 0, {0}},
    {"zb-auto",
     make_auto,
     OPIPE_PLACE_LOOP,
     1,
     {"memory", NULL, "1",
      "limit on every rank, in units of the largest stash of a rank under 1F1B", 0, 1e6, 'x', 0}},
    {"zb-interleaved", make_interleaved, OPIPE_PLACE_LOOP, 1, OPIPE_OPTION_CHUNKS},
    {"zbv",
     make_v,
     OPIPE_PLACE_V,
     1,
     {"order", "greedy|torch", "greedy", "the shortest one found, or the hand-made one", 0, 0, 's',
      0}},
    {"v-half", make_v_half, OPIPE_PLACE_V, 0, {0}},
    {"v-min", make_v_min, OPIPE_PLACE_V, 0, {0}},
};

static opipe_status find(const char *id, const member **out_member, opipe_error *err) {
  for (size_t i = 0; i < sizeof members / sizeof members[0]; ++i) {
    if (strcmp(members[i].id, id) == 0) {
      *out_member = &members[i];
      return OPIPE_OK;
    }
  }
  return opipe_fail(err, OPIPE_E_INTERNAL, "schedule '%s' is not of this family", id);
}

opipe_status zb_options(const char *id, const opipe_schedule_option **out_options,
                        uint32_t *out_count, opipe_error *err) {
  const member *m = NULL;
  const opipe_status status = find(id, &m, err);
  if (status >= 0) {
    *out_options = m->n_options > 0 ? &m->option : NULL;
    *out_count = m->n_options;
  }
  return status;
}

opipe_status zb_lay_out(const char *id, const opipe_layout_request *request,
                        opipe_layout *io_layout, opipe_error *err) {
  const member *m = NULL;
  opipe_status status = find(id, &m, err);
  if (status < 0)
    return status;
  uint32_t chunks = m->place == OPIPE_PLACE_V ? 2 : 1;
  if (m->make == make_interleaved)
    status = opipe_setting_chunks(request, &chunks, err);
  return status < 0 ? status : opipe_layout_chunks(request, io_layout, chunks, m->place, id, err);
}

typedef opipe_status (*emit_fn)(zb_job *job, opipe_emit_fn emit, void *emit_ctx, opipe_error *err);

static opipe_status emit_best(zb_job *job, opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  return zb_emit(job->problem, &job->model, &job->best, emit, emit_ctx, err);
}

static opipe_status make_and_emit(const member *m, const opipe_host *host,
                                  const opipe_schedule_problem *problem, emit_fn emit_order,
                                  opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  zb_job job = {.work = {host, NULL}, .problem = problem};
  opipe_status status = zb_job_start(&job, err);
  if (status >= 0)
    status = m->make(&job, err);
  if (status >= 0)
    status = emit_order(&job, emit, emit_ctx, err);
  opipe_work_end(&job.work);
  return status;
}

opipe_status zb_plan(const char *id, const opipe_host *host, const opipe_schedule_problem *problem,
                     opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const member *m = NULL;
  opipe_status status = find(id, &m, err);
  if (status < 0)
    return status;
  if (problem->mode == OPIPE_MODE_FORWARD) {
    return m->place == OPIPE_PLACE_V
               ? opipe_emit_forwards_v(problem, emit, emit_ctx, err)
               : opipe_emit_forwards(problem, problem->layout->n_ranks, emit, emit_ctx, err);
  }
  return make_and_emit(m, host, problem, emit_best, emit, emit_ctx, err);
}

/* ---- published tables ---- */

/* The hand-made order for `n` micro-batches or more, of which the first are real. */
typedef struct cut {
  uint32_t n;
  opipe_emit_fn emit;
  void *emit_ctx;
} cut;

static opipe_status emit_cut(void *ctx, const opipe_action *actions, uint32_t n, opipe_error *err) {
  const cut *c = (const cut *)ctx;
  opipe_status status = OPIPE_OK;
  for (uint32_t i = 0; i < n && status >= 0; ++i) {
    status = actions[i].microbatch < c->n
                 ? c->emit(c->emit_ctx, &actions[i], 1, err)
                 : opipe_emit_idle(c->emit, c->emit_ctx, actions[i].rank, 1, err);
  }
  return status;
}

opipe_status zb_cells(const char *id, const opipe_host *host, const opipe_schedule_problem *problem,
                      opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const member *m = NULL;
  opipe_status status = find(id, &m, err);
  if (status < 0)
    return status;
  if (m->make == make_interleaved)
    return make_and_emit(m, host, problem, zb_emit_slots, emit, emit_ctx, err);
  if (m->make != make_v || !is_hand_made(problem))
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "it was not published as a table");
  cut real = {problem->n_microbatches, emit, emit_ctx};
  opipe_schedule_problem more = *problem;
  const uint32_t least = 2 * problem->layout->n_ranks - 1;
  more.n_microbatches = real.n < least ? least : real.n;
  status = opipe_emit_idle_first(problem, emit, emit_ctx, err);
  return status < 0 ? status : make_and_emit(m, host, &more, emit_best, emit_cut, &real, err);
}
