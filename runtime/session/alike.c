/* SPDX-License-Identifier: Apache-2.0 */
/* Lists what the ranks here hold, for the comparison with other sessions. */
#include <string.h>

#include "runtime/session/alike.h"

typedef struct held {
  opi_held_param *list;
  uint32_t n, room;
  opi_arena arena;
} held;

static const opi_compiled *plan_shape(const opi_session *session) {
  const opi_shapes *shapes = session->shapes;
  for (uint32_t i = 0; i < shapes->n_places; ++i) {
    if (shapes->list[i] != NULL && shapes->list[i]->keep)
      return shapes->list[i]->compiled;
  }
  return NULL;
}

/* The parameters of one member of a stage instance, if its rank is here. */
/* Whether members of tensor groups have values of their own under the row's name: parts of a
 * parameter, or of what is computed from parameters once. */
static bool is_of_members(const opi_cut *table, uint32_t row) {
  uint32_t i = 0;
  if (table->parts == NULL || table->parts[row] != NULL)
    return table->parts != NULL;
  while (i < table->n_params &&
         (i == row || strcmp(table->sources[i].name, table->sources[row].name) != 0))
    ++i;
  return i < table->n_params;
}

static opipe_status add_instance(const opi_compiled *t, uint32_t instance, uint32_t member, held *h,
                                 opipe_error *err) {
  const opi_setup *s = t->setup;
  const opi_decision *plan = &s->plan->decided;
  const uint32_t rank = plan->instance_rank[instance] + member;
  uint32_t *slots = NULL, n = 0;
  if (plan->instance_rank[instance] == OPIPE_NONE || !opi_rank_is_here(s, rank))
    return OPIPE_OK;
  const opipe_param_source *sources =
      s->ranks[rank].sources != NULL ? s->ranks[rank].sources : s->shapes->master->sources;
  OPI_TRY(
      opi_member_params(t->model, instance / plan->n_replicas, member, &h->arena, &slots, &n, err));
  for (uint32_t i = 0; i < n; ++i) {
    if (is_of_members(s->shapes->master, slots[i]))
      continue;
    opi_held_param *p = &h->list[h->n++];
    *p = (opi_held_param){
        .source = &sources[slots[i]], .backend = s->env.backends[rank].id, .rank = rank};
    p->summed = s->shapes->weights != NULL && opi_weights_sums(s->shapes->weights, rank, slots[i],
                                                               &p->layout, &p->n_bytes)
                    ? 1
                    : 0;
  }
  return OPIPE_OK;
}

static opipe_status list_held(const opi_session *session, held *h, opipe_error *err) {
  const opi_compiled *t = plan_shape(session);
  const opi_decision *plan = &session->setup->plan->decided;
  const uint32_t width = opi_plan_width(plan), n = plan->n_stages * plan->n_replicas * width;
  if (t == NULL)
    return opi_fail(err, OPIPE_E_INTERNAL, "the plan's own shape is not there");
  h->list = OPI_ARENA_ARRAY(&h->arena, opi_held_param, (size_t)n * t->model->cuts[0]->n_params);
  if (h->list == NULL)
    return opi_fail_nomem(err, n * sizeof *h->list, "parameters");
  for (uint32_t i = 0; i < n; ++i)
    OPI_TRY(add_instance(t, i / width, i % width, h, err));
  return opi_model_check_files(session->setup->env.model, err);
}

opipe_status opi_alike_check(const opi_session *session, opipe_error *err) {
  const opi_setup *s = session->setup;
  const opi_together *t = &s->env.together;
  held h = {.list = NULL};
  if (t->compare == NULL)
    return OPIPE_OK;
  opi_arena_init(&h.arena, s->allocator, 0);
  opipe_status status = list_held(session, &h, err);
  status = t->compare(t->ctx, h.list, h.n, status, err);
  opi_arena_release(&h.arena);
  return status;
}
