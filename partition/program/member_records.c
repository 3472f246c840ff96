/* SPDX-License-Identifier: Apache-2.0 */
/* The records of tensor groups: one for every place of a stage, in the order in which its pass goes
 * through them. Whatever a rank can compute while a sum travels stands behind the record that comes
 * to it:
 *
 *   whole backward    I4 sum3 W4  I2 sum1 W2  B0      at places that split
 *   pair (A, B)       A0 sum1  B4 sum3 W4  A2 sum3  B2 sum1 W2  A4  B0
 */
#include "loader/ops/collective.h"
#include "partition/program/model.h"

/* ---- places ---- */

/* A place has these in some member. */
enum { HAS_INPUT = 1, HAS_WEIGHT = 2, SUMS_WEIGHT = 4 /* sums what W made */ };

static uint32_t phase_of(const opi_node *node) {
  return node->pass == OPIPE_PASS_BACKWARD_INPUT    ? OPI_PHASE_I
         : node->pass == OPIPE_PASS_BACKWARD_WEIGHT ? OPI_PHASE_W
                                                    : OPI_PHASE_F;
}

static void note_nodes(const opi_variant_slice *slice, uint8_t *sums, uint8_t *has) {
  const opi_graph *g = slice->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    const uint32_t phase = phase_of(&g->nodes[n]), at = slice->stage[n];
    opi_collective how;
    const bool sum = opi_collective_of(g, &g->nodes[n], &how) && how.kind != OPI_COLLECTIVE_SPREAD;
    const uint32_t maker = sum ? g->values[g->nodes[n].in[0]].producer : OPIPE_NONE;
    if (sum)
      sums[at] |= (uint8_t)(1u << phase);
    has[at] |= phase == OPI_PHASE_I ? HAS_INPUT : phase == OPI_PHASE_W ? HAS_WEIGHT : 0;
    has[at] |= maker != OPIPE_NONE && phase_of(&g->nodes[maker]) == OPI_PHASE_W ? SUMS_WEIGHT : 0;
  }
}

opipe_status opi_members_split(const opi_decision *plan, opi_cut_model *model, opipe_error *err) {
  const uint32_t n = plan->n_stages * model->n_places;
  uint8_t *has = OPI_ARENA_ARRAY(&model->arena, uint8_t, n);
  model->sums = OPI_ARENA_ARRAY(&model->arena, uint8_t, n);
  model->splits = OPI_ARENA_ARRAY(&model->arena, bool, n);
  if (has == NULL || model->sums == NULL || model->splits == NULL)
    return opi_fail_nomem(err, n, "stretches");
  for (uint32_t k = 0; k < opi_model_graphs(model); ++k)
    note_nodes(&model->variants[model->base].slices[k], model->sums, has);
  /* gradients of weights that are summed at once leave nothing to compute behind the sum */
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t place = i % model->n_places;
    model->splits[i] = place != 0 && place % 2 == 0 && has[i] == (HAS_INPUT | HAS_WEIGHT) &&
                       (has[i - 1] & SUMS_WEIGHT) == 0 &&
                       (model->sums[i - 1] & 1u << OPI_PHASE_I) != 0;
  }
  return OPIPE_OK;
}

/* ---- records ---- */

/* A record of the plan while its places are listed. */
typedef struct record_walk {
  const opi_decision *plan;
  const opi_cut_model *model;
  const opipe_action *from;
  uint32_t member;
  uint32_t left;  /* places */
  uint32_t delay; /* the place whose W is due; OPIPE_NONE: none */
} record_walk;

static record_walk begin(const opi_decision *plan, const opi_cut_model *model, uint32_t a,
                         uint32_t member) {
  return (record_walk){.plan = plan,
                       .model = model,
                       .from = &plan->actions[a],
                       .member = member,
                       .left = model->n_places,
                       .delay = OPIPE_NONE};
}

static bool is_split(const record_walk *w, uint32_t place) {
  return w->from->pass == OPIPE_PASS_BACKWARD &&
         w->model->splits[w->from->stage * w->model->n_places + place];
}

static opipe_action at_place(const record_walk *w, uint32_t place, uint32_t pass) {
  opipe_action out = *w->from;
  out.pass = (uint8_t)pass;
  out.flags &= ~(uint32_t)OPIPE_ACTION_OVERLAP_NEXT;
  opi_action_place(w->plan, w->model, place, w->member, &out);
  return out;
}

/* Lists records up to the next sum that the pass comes to, with what stands behind it. False: there
 * are none left. */
static bool list_turn(record_walk *w, opipe_action *list, uint32_t *io_n) {
  const uint32_t n = w->model->n_places, phases = opi_program_phases(opi_action_program(w->from));
  const bool any = w->left > 0;
  for (bool summed = false; w->left > 0 && !summed; --w->left) {
    const uint32_t place = w->from->pass == OPIPE_PASS_FORWARD ? n - w->left : w->left - 1;
    const bool split = is_split(w, place);
    list[(*io_n)++] =
        at_place(w, place, split ? (uint32_t)OPIPE_PASS_BACKWARD_INPUT : w->from->pass);
    summed = (w->model->sums[w->from->stage * n + place] & phases) != 0;
    if (w->delay != OPIPE_NONE)
      list[(*io_n)++] = at_place(w, w->delay, OPIPE_PASS_BACKWARD_WEIGHT);
    w->delay = split ? place : OPIPE_NONE;
  }
  return any;
}

static bool is_pair(const opi_decision *plan, uint32_t a) {
  return (plan->actions[a].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 && a + 1 < plan->n_actions &&
         plan->actions[a + 1].rank == plan->actions[a].rank;
}

uint32_t opi_member_records_count(const opi_decision *plan, const opi_cut_model *model,
                                  uint32_t a) {
  const record_walk w = begin(plan, model, a, 0);
  uint32_t n = model->n_places;
  for (uint32_t place = 0; place < model->n_places; ++place)
    n += is_split(&w, place);
  return n;
}

uint32_t opi_member_records_add(const opi_decision *plan, const opi_cut_model *model, uint32_t a,
                                uint32_t member, opipe_action *list, uint32_t *io_n,
                                uint32_t *last_of) {
  const uint32_t n_records = is_pair(plan, a) ? 2 : 1;
  record_walk walks[2] = {begin(plan, model, a, member),
                          begin(plan, model, a + n_records - 1, member)};
  for (bool more = true; more;) {
    more = false;
    for (uint32_t k = 0; k < n_records; ++k) {
      if (!list_turn(&walks[k], list, io_n))
        continue;
      more = true;
      if (last_of != NULL)
        last_of[a + k] = *io_n - 1;
    }
  }
  return n_records;
}
