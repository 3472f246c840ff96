/* SPDX-License-Identifier: Apache-2.0 */
/* Lowering, forward form: around every compute its loads, receives, stores and sends.
 *
 * A receive stands just before its consumer (lazy), a send right after its producer. Where the
 * schedule limits how many micro-batches are in flight, the last stage sends a credit that the
 * first stage receives before it starts another one.
 */
#include "partition/schedule/lower.h"

typedef struct build {
  const opi_plan *plan;
  const opi_cut *cut;
  opi_program_list *list;
  uint32_t *send_first, *sends; /* routes out of stage s, rising: sends[send_first[s]] ... */
  uint32_t room;
  opipe_error *err;
} build;

static opipe_status add(build *b, uint32_t kind, const opipe_action *action, uint32_t route) {
  opi_program_list *l = b->list;
  if (!opi_arena_grow(&l->arena, (void **)&l->steps, &b->room, l->n_steps + 1, sizeof(*l->steps)))
    return opi_fail_nomem(b->err, sizeof(*l->steps), "a step");
  l->steps[l->n_steps++] = (opi_step){.kind = kind,
                                      .stage = action->stage,
                                      .replica = action->replica,
                                      .microbatch = action->microbatch,
                                      .route = route,
                                      .pass = action->pass};
  return OPIPE_OK;
}

/* Does the stage read a request's input, or make a result? */
static bool has_cell(const opi_cut *cut, uint32_t stage, uint32_t source) {
  for (uint32_t i = cut->cell_first[stage]; i < cut->cell_first[stage + 1]; ++i) {
    const opi_cell *cell = &cut->cells[i];
    if (cell->source == source && (source != OPI_CELL_MADE || cell->output != OPIPE_NONE))
      return true;
  }
  return false;
}

static bool crosses(const build *b, const opi_route *route) {
  return opi_plan_rank(b->plan, route->src_stage, 0) != opi_plan_rank(b->plan, route->dst_stage, 0);
}

/* The credit loop exists only where the first and the last stage are on different ranks. */
static bool has_credit(const opi_plan *plan) {
  return plan->in_flight != 0 &&
         opi_plan_rank(plan, 0, 0) != opi_plan_rank(plan, plan->n_stages - 1, 0);
}

static opipe_status lower_action(build *b, const opipe_action *action) {
  const opi_cut *cut = b->cut;
  const uint32_t stage = action->stage;
  if (action->stage == 0 && has_credit(b->plan))
    OPI_TRY(add(b, OPI_ACT_RECV, action, OPI_ROUTE_CREDIT));
  if (has_cell(cut, stage, OPI_CELL_REQUEST))
    OPI_TRY(add(b, OPI_ACT_LOAD, action, OPIPE_NONE));
  for (uint32_t i = cut->cell_first[stage]; i < cut->cell_first[stage + 1]; ++i) {
    const uint32_t r = cut->cells[i].route;
    if (cut->cells[i].source == OPI_CELL_RECEIVED && crosses(b, &cut->routes[r]))
      OPI_TRY(add(b, OPI_ACT_RECV, action, r));
  }
  OPI_TRY(add(b, OPI_ACT_COMPUTE, action, OPIPE_NONE));
  if (has_cell(cut, stage, OPI_CELL_MADE))
    OPI_TRY(add(b, OPI_ACT_STORE, action, OPIPE_NONE));
  for (uint32_t i = b->send_first[stage]; i < b->send_first[stage + 1]; ++i) {
    if (crosses(b, &cut->routes[b->sends[i]]))
      OPI_TRY(add(b, OPI_ACT_SEND, action, b->sends[i]));
  }
  if (action->stage + 1 == b->plan->n_stages && has_credit(b->plan))
    OPI_TRY(add(b, OPI_ACT_SEND, action, OPI_ROUTE_CREDIT));
  return OPIPE_OK;
}

static opipe_status list_sends(build *b, opi_arena *scratch) {
  const opi_cut *c = b->cut;
  b->send_first = OPI_ARENA_ARRAY(scratch, uint32_t, (size_t)c->n_stages + 2);
  b->sends = OPI_ARENA_ARRAY(scratch, uint32_t, c->n_routes);
  if (b->send_first == NULL || b->sends == NULL)
    return opi_fail_nomem(b->err, c->n_routes * sizeof(uint32_t), "routes");
  for (uint32_t r = 0; r < c->n_routes; ++r)
    ++b->send_first[c->routes[r].src_stage + 2];
  for (uint32_t s = 2; s <= c->n_stages; ++s)
    b->send_first[s] += b->send_first[s - 1];
  for (uint32_t r = 0; r < c->n_routes; ++r)
    b->sends[b->send_first[c->routes[r].src_stage + 1]++] = r;
  return OPIPE_OK;
}

static opipe_status lower_all(build *b) {
  const opi_plan *plan = b->plan;
  b->list->n_ranks = plan->n_ranks;
  b->list->rank_first = OPI_ARENA_ARRAY(&b->list->arena, uint32_t, (size_t)plan->n_ranks + 1);
  if (b->list->rank_first == NULL)
    return opi_fail_nomem(b->err, plan->n_ranks * sizeof(uint32_t), "steps");
  for (uint32_t rank = 0; rank < plan->n_ranks; ++rank) {
    b->list->rank_first[rank] = b->list->n_steps;
    for (uint32_t a = plan->rank_first[rank]; a < plan->rank_first[rank + 1]; ++a)
      OPI_TRY(lower_action(b, &plan->actions[a]));
  }
  b->list->rank_first[plan->n_ranks] = b->list->n_steps;
  return OPIPE_OK;
}

opipe_status opi_lower(const opi_plan *plan, const opi_cut *cut, const opipe_allocator *allocator,
                       opi_program_list **out_list, opipe_error *err) {
  opi_program_list *list = opi_alloc_zero(allocator, 1, sizeof(*list));
  if (list == NULL)
    return opi_fail_nomem(err, sizeof(*list), "steps");
  opi_arena_init(&list->arena, allocator, 0);
  build b = {.plan = plan, .cut = cut, .list = list, .err = err};
  opi_arena scratch;
  opi_arena_init(&scratch, allocator, 0);
  opipe_status status = list_sends(&b, &scratch);
  if (status == OPIPE_OK)
    status = lower_all(&b);
  opi_arena_release(&scratch);
  if (status < 0) {
    opi_program_list_free(list);
    return status;
  }
  *out_list = list;
  return OPIPE_OK;
}

void opi_program_list_free(opi_program_list *list) {
  if (list == NULL)
    return;
  const opipe_allocator *allocator = list->arena.allocator;
  opi_arena_release(&list->arena);
  opi_free(allocator, list, sizeof(*list));
}
