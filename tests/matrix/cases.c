/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix's cases; see cases.h. Caps are derived from the uncapped plan: one rank's cap is set
 * just below what it took, so that the cut has to move. */
#include "tests/matrix/cases.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const SCHEDULES[] = {"sequential", "gpipe"};
enum { REQUESTS = 3, UNIT = 64, CUTS = 3 };

/* ---- one case ---- */

static bool same_memory(const opipe_memory_info *p, const opipe_memory_info *q) {
  return p->params_bytes == q->params_bytes && p->boundary_bytes == q->boundary_bytes &&
         p->activation_bytes == q->activation_bytes && p->workspace_bytes == q->workspace_bytes &&
         p->gradient_bytes == q->gradient_bytes && p->optimizer_bytes == q->optimizer_bytes &&
         p->version_bytes == q->version_bytes && p->stash_bytes == q->stash_bytes &&
         p->total_bytes == q->total_bytes;
}

const char *mx_memory(mx_model *m, opipe_plan *plan, opipe_session *session) {
  static char reason[400];
  opipe_plan_info plan_info = {.struct_size = sizeof plan_info};
  if (m->api->plan_info(plan, &plan_info, &m->err) != OPIPE_OK)
    return m->err.message;
  for (uint32_t r = 0; r < plan_info.n_ranks; ++r) {
    opipe_memory_info p = {.struct_size = sizeof p}, q = p;
    if (m->api->plan_memory(plan, r, &p, &m->err) != OPIPE_OK ||
        m->api->session_memory(session, r, &q, &m->err) != OPIPE_OK)
      return m->err.message;
    if (same_memory(&p, &q) && q.total_bytes <= p.cap_bytes)
      continue;
    (void)snprintf(reason, sizeof reason,
                   "rank %u: predicted params %llu activations %llu workspace %llu boundaries "
                   "%llu total %llu cap %llu, measured %llu %llu %llu %llu %llu",
                   r, (unsigned long long)p.params_bytes, (unsigned long long)p.activation_bytes,
                   (unsigned long long)p.workspace_bytes, (unsigned long long)p.boundary_bytes,
                   (unsigned long long)p.total_bytes, (unsigned long long)p.cap_bytes,
                   (unsigned long long)q.params_bytes, (unsigned long long)q.activation_bytes,
                   (unsigned long long)q.workspace_bytes, (unsigned long long)q.boundary_bytes,
                   (unsigned long long)q.total_bytes);
    return reason;
  }
  return NULL;
}

static const char *memory_as_predicted(mx_model *m, opipe_plan *plan) {
  opipe_session *session = NULL;
  if (m->api->session_open(m->context, plan, NULL, &session, &m->err) != OPIPE_OK)
    return m->err.message;
  const char *wrong = mx_memory(m, plan, session);
  m->api->session_close(session);
  return wrong;
}

const char *mx_case(mx_model *m, opipe_plan *plan, const mx_result *uncut) {
  mx_result found = {.n = 0}, reference = {.n = 0};
  const char *wrong = memory_as_predicted(m, plan);
  if (wrong == NULL && mx_run(m, plan, 0, REQUESTS, &found) != OPIPE_OK)
    wrong = m->err.message;
  if (wrong == NULL && mx_run(m, plan, OPIPE_SESSION_REFERENCE, 1, &reference) != OPIPE_OK)
    wrong = m->err.message;
  if (wrong == NULL)
    wrong = mx_same_bits(&found, &reference);
  if (wrong == NULL)
    wrong = mx_close_to(&found, uncut);
  if (wrong == NULL)
    wrong = mx_matches_set(m->folder, m->set, &found);
  mx_result_free(&found);
  mx_result_free(&reference);
  return wrong;
}

/* ---- a model in one binding ---- */

typedef struct choice {
  uint32_t set, stages, microbatches, schedule;
  bool fuse;
  kit_place place;
} choice;

static void say(mx_count *count, const mx_model *m, const choice *c, const char *what,
                const char *wrong) {
  if (wrong == NULL) {
    ++count->passed;
    return;
  }
  ++count->failed;
  OPI_FAIL("%s set %u, %s, %u stages, %s, %u micro-batches%s: %s", m->folder->name, c->set,
           c->fuse ? "fused" : "not fused", c->stages, SCHEDULES[c->schedule], c->microbatches,
           what, wrong);
}

bool mx_refused(mx_count *count, const mx_model *m, opipe_status status) {
  const char *message = m->err.message;
  if (strstr(message, " of a request of ") != NULL)
    ++count->refused_rows;
  else if (strstr(message, "no input has a free dimension") != NULL)
    ++count->refused_batch;
  else if (status == OPIPE_E_UNSUPPORTED && strstr(message, "node '") != NULL)
    ++count->refused_node;
  else
    return false;
  return true;
}

static opipe_status make_plan(mx_model *m, const choice *c, const uint64_t *caps,
                              opipe_plan **out_plan) {
  opipe_device_choice devices[MX_RANKS];
  for (uint32_t r = 0; r < MX_RANKS; ++r) {
    devices[r] = kit_place_device(&c->place);
    devices[r].memory_bytes = caps == NULL ? 0 : caps[r];
  }
  const opipe_plan_params params = {.struct_size = sizeof params,
                                    .n_stages = c->stages,
                                    .devices = devices,
                                    .n_devices = c->stages,
                                    .devices_stride = sizeof(opipe_device_choice),
                                    .n_microbatches = c->microbatches,
                                    .schedule = SCHEDULES[c->schedule],
                                    .transport = c->place.transport,
                                    .flags = OPIPE_PLAN_IGNORE_ANNOTATIONS};
  return m->api->plan_make(m->bound, &params, out_plan, &m->err);
}

static void plain_case(mx_model *m, const choice *c, const mx_result *uncut, mx_count *count) {
  opipe_plan *plan = NULL;
  const opipe_status status = make_plan(m, c, NULL, &plan);
  if (status == OPIPE_OK)
    say(count, m, c, "", mx_case(m, plan, uncut));
  else if (c->microbatches == 1 || !mx_refused(count, m, status))
    say(count, m, c, " (plan)", m->err.message);
  m->api->plan_destroy(plan);
}

/* ---- caps ---- */

/* Lowers the cap of rank `rank` below what `plan` takes there; the new plan, or NULL where nothing
 * fits any more. */
static opipe_plan *squeeze(mx_model *m, const choice *c, opipe_plan *plan, uint32_t rank,
                           uint64_t *caps) {
  opipe_memory_info info = {.struct_size = sizeof info};
  opipe_plan *next = NULL;
  if (m->api->plan_memory(plan, rank, &info, &m->err) != OPIPE_OK || info.total_bytes <= UNIT)
    return NULL;
  caps[rank] = info.total_bytes - UNIT;
  if (make_plan(m, c, caps, &next) != OPIPE_OK)
    return NULL;
  return next;
}

static const char *capped_case(mx_model *m, const choice *c, opipe_plan *plan, const uint64_t *caps,
                               const mx_result *uncut) {
  for (uint32_t r = 0; r < c->stages; ++r) {
    opipe_memory_info info = {.struct_size = sizeof info};
    if (m->api->plan_memory(plan, r, &info, &m->err) != OPIPE_OK)
      return m->err.message;
    if (caps[r] != 0 && (info.total_bytes > caps[r] || info.cap_bytes != caps[r]))
      return "the plan takes more than the cap, or does not know it";
  }
  return mx_case(m, plan, uncut); /* measured <= cap is asked there */
}

/* Squeezes each rank in turn until CUTS different cuts were seen. */
static uint32_t caps_of(mx_model *m, const choice *c, const mx_result *uncut, mx_count *count) {
  char *cuts[CUTS] = {NULL};
  opipe_plan *base = NULL;
  uint32_t n_cuts = 0;
  if (make_plan(m, c, NULL, &base) != OPIPE_OK) {
    say(count, m, c, " (plan for caps)", m->err.message);
    return 0;
  }
  cuts[n_cuts++] = mx_cut_text(m, base);
  for (uint32_t r = 0; r < c->stages && n_cuts < CUTS; ++r) {
    uint64_t caps[MX_RANKS] = {0};
    opipe_plan *next = squeeze(m, c, base, r, caps);
    if (next == NULL)
      continue;
    cuts[n_cuts] = mx_cut_text(m, next);
    const bool moved = cuts[n_cuts] != NULL && cuts[0] != NULL && cuts[n_cuts][0] != '\0' &&
                       strcmp(cuts[n_cuts], cuts[0]) != 0;
    const bool again = moved && n_cuts > 1 && strcmp(cuts[n_cuts], cuts[1]) == 0;
    say(count, m, c, ", capped",
        moved ? capped_case(m, c, next, caps, uncut) : "the cap did not move the cut");
    count->capped += moved;
    if (moved && !again) {
      ++n_cuts;
    } else {
      free(cuts[n_cuts]);
      cuts[n_cuts] = NULL;
    }
    m->api->plan_destroy(next);
  }
  for (uint32_t i = 0; i < CUTS; ++i)
    free(cuts[i]);
  m->api->plan_destroy(base);
  return n_cuts;
}

/* ---- the matrix ---- */

static bool bind_and_run(mx_model *m, const choice *c, mx_result *uncut, mx_count *count) {
  const bool ok = mx_bind(m, c->set, c->fuse) == OPIPE_OK && mx_run_uncut(m, uncut) == OPIPE_OK;
  if (!ok)
    say(count, m, c, " (uncut)", m->err.message);
  return ok;
}

static uint32_t full_binding(mx_model *m, choice c, mx_count *count) {
  mx_result uncut = {.n = 0};
  uint32_t cuts = 0;
  if (!bind_and_run(m, &c, &uncut, count))
    return 0;
  for (c.stages = 1; c.stages <= MX_RANKS; ++c.stages) {
    for (c.schedule = 0; c.schedule < 2; ++c.schedule) {
      for (c.microbatches = 1; c.microbatches <= 3; ++c.microbatches)
        plain_case(m, &c, &uncut, count);
      c.microbatches = 1;
      const uint32_t n = c.stages == 1 ? 0 : caps_of(m, &c, &uncut, count);
      cuts = n > cuts ? n : cuts;
    }
  }
  mx_result_free(&uncut);
  return cuts;
}

/* Two bindings a model; stage counts, schedules and micro-batches in turn. Where a cover is enough
 * one stage count a binding, and caps in one binding of six. */
static uint32_t cover_binding(mx_model *m, choice c, uint32_t turn, mx_count *count) {
  mx_result uncut = {.n = 0};
  uint32_t cuts = 0;
  if (!bind_and_run(m, &c, &uncut, count))
    return 0;
  for (c.stages = 1; c.stages <= MX_RANKS; ++c.stages) {
    if (!opi_test_covers(turn + c.stages, MX_RANKS))
      continue;
    c.schedule = (turn + c.stages) % 2;
    c.microbatches = 1 + (turn / 2 + c.stages) % 3;
    plain_case(m, &c, &uncut, count);
  }
  c.microbatches = 1;
  cuts = opi_test_covers(turn, 6) ? 0 : 2;
  for (c.stages = 2 + turn % 3; cuts < 2 && c.stages <= 2 * MX_RANKS; ++c.stages) {
    choice now = c;
    now.stages = 2 + (c.stages - 2) % 3;
    cuts = caps_of(m, &now, &uncut, count);
  }
  mx_result_free(&uncut);
  return cuts;
}

static kit_place place_of(const mx_scope *scope, uint32_t turn) {
  return scope->n_places == 0 ? (kit_place){.transport = NULL}
                              : scope->places[turn % scope->n_places];
}

static void one_folder(const char *name, const mx_scope *scope, uint32_t turn, mx_count *count) {
  const bool full = scope->full;
  const choice first = {.fuse = turn % 2 == 0, .place = place_of(scope, turn)};
  opipe_error err = OPIPE_ERROR_INIT;
  mx_folder *folder = NULL;
  mx_model m = {.api = NULL};
  uint32_t cuts = 0;
  if (mx_folder_read(name, &folder, &err) < 0 || mx_open(&m, NULL, folder) != OPIPE_OK) {
    ++count->failed;
    OPI_FAIL("%s: %s%s", name, err.message, m.err.message);
  } else if (full) {
    for (uint32_t b = 0; b < 2 * folder->n_sets; ++b) {
      choice c = first;
      c.set = b / 2;
      c.fuse = b % 2 == 0;
      c.place = place_of(scope, turn + b);
      const uint32_t n = full_binding(&m, c, count);
      cuts = n > cuts ? n : cuts;
    }
  } else {
    choice last = first, other = first;
    last.set = folder->n_sets - 1;
    other.fuse = !first.fuse;
    cuts = cover_binding(&m, last, turn, count);
    const uint32_t n = opi_test_covers(turn, 3) ? cover_binding(&m, other, turn + 1, count) : 0;
    cuts = n > cuts ? n : cuts;
  }
  if (cuts < 2 && m.bound != NULL) {
    ++count->one_cut;
    OPI_FAIL("%s: no cap forces another cut", name);
  }
  mx_close(&m);
  mx_folder_free(folder);
}

void mx_matrix(const mx_scope *scope, mx_count *count) {
  const char *names[MX_FOLDERS];
  const size_t n = mx_list(names);
  size_t n_taken = 0;
  memset(count, 0, sizeof *count);
  for (size_t i = 0; i < n; ++i) {
    if (scope->one_in > 1 && !opi_test_covers(i, scope->one_in))
      continue;
    one_folder(names[i], scope, (uint32_t)i, count);
    ++n_taken;
  }
  (void)printf("\n%zu models: %u passed (%u with a cut moved by a cap), %u failed\n", n_taken,
               count->passed, count->capped, count->failed);
  (void)printf(
      "refused as they must be: %u fewer rows than micro-batches, %u without a free batch "
      "dimension, %u by a node that does not carry the batch\n",
      count->refused_rows, count->refused_batch, count->refused_node);
}
