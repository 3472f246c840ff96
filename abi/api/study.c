/* SPDX-License-Identifier: Apache-2.0 */
/* See study.h. [any-thread] */
#include "abi/api/study.h"

#include <string.h>

#include "partition/study/cluster/cluster.h"
#include "partition/study/improve/plan.h"
#include "partition/study/page/play_page.h"
#include "partition/study/simulate/baselines.h"

/* ---- orders ---- */

const opi_order_search *opi_study_order_search(void) {
  return &opi_study_search;
}

uint32_t opi_study_search_options(const opipe_schedule_option **out_options,
                                  const char **out_summary) {
  *out_summary = opi_search_summary;
  return opi_search_options(out_options);
}

/* Orders of other systems, for comparison only: no plan has them. */
static opipe_status make_baseline(const opi_question *q, uint32_t flags,
                                  const opipe_allocator *allocator, opi_order **out_order,
                                  opipe_error *err) {
  const uint32_t n = q->n_ranks != 0 ? q->n_ranks : q->n_stages;
  if (flags != 0 || q->replicas > 1 || (q->n_stages != 0 && q->n_stages != n)) {
    return opi_fail(
        err, OPIPE_E_UNSUPPORTED,
        "%s: trains one stage per rank, but %u stages, %u replicas and flags %u were asked "
        "for",
        q->schedule, q->n_stages, q->replicas, flags);
  }
  if (strcmp(q->schedule, "gems") == 0)
    return opi_order_gems(n, q->n_microbatches, allocator, out_order, err);
  if (q->n_microbatches != n) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "pipedream: the repeated part has one micro-batch per stage: %u, not %u", n,
                    q->n_microbatches);
  }
  return opi_order_pipedream(n, allocator, out_order, err);
}

opipe_status opi_study_order(opi_context_object *context, const opi_question *question,
                             uint32_t flags, opi_order **out_order, opipe_error *err) {
  if (opi_is_baseline(question->schedule))
    return make_baseline(question, flags, &context->allocator, out_order, err);
  return opi_search_ask(&context->plugins, question, true, &context->allocator, out_order, NULL,
                        err);
}

opipe_status opi_study_bound(const opi_order *order, const opi_costs *costs, double *out_bound,
                             opipe_error *err) {
  return opi_improve_bound(&order->problem, order->list, costs, order->arena.allocator, out_bound,
                           err);
}

opipe_status opi_study_order_page(const opi_order *order, const opi_costs *costs,
                                  const opi_simulation *result, const char *figures,
                                  const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                                  opipe_error *err) {
  opi_page page;
  opi_arena arena;
  opi_arena_init(&arena, allocator, 0);
  opi_page_begin(&page, allocator, "", "");
  opipe_status status = opi_page_add_order(&page, "simulated", &order->problem, order->list, costs,
                                           NULL, figures, result->makespan, &arena, err);
  if (status == OPIPE_OK)
    status = opi_page_write(&page, write, ctx, err);
  opi_page_release(&page);
  opi_arena_release(&arena);
  return status;
}

/* ---- clusters ---- */

opipe_status opi_study_take_cluster(opi_arena *arena, opipe_plan_params *io_params,
                                    opipe_error *err) {
  opipe_plan_params *p = io_params;
  opi_cluster *c = OPI_ARENA_NEW(arena, opi_cluster);
  const char *name = p->cluster_name == NULL ? "the cluster" : p->cluster_name;
  if (p->cluster == NULL)
    return OPIPE_OK;
  if (c == NULL)
    return opi_fail_nomem(err, sizeof *c, "a cluster");
  if (p->n_devices != 0 || p->n_descriptions != 0 || p->link != NULL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "plan_make: a cluster, and %u devices, %u descriptions and %u links: give only "
                    "one",
                    p->n_devices, p->n_descriptions, p->link != NULL);
  }
  OPI_TRY(opi_cluster_read(name, p->cluster, p->cluster_bytes, arena, c, err));
  p->devices = c->devices;
  p->descriptions = c->descriptions;
  p->n_devices = p->n_descriptions = c->n_devices;
  p->devices_stride = (uint32_t)sizeof *c->devices;
  p->descriptions_stride = (uint32_t)sizeof *c->descriptions;
  if (c->transport == NULL)
    return OPIPE_OK;
  if (p->transport != NULL) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "%s: \"transport\" is '%.60s', but '%.60s' was asked for: give only one", name,
                    c->transport, p->transport);
  }
  p->transport = c->transport;
  p->link = &c->link;
  return OPIPE_OK;
}
