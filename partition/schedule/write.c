/* SPDX-License-Identifier: Apache-2.0 */
/* Writes orders as text, CSV and JSON. Equal orders give equal bytes. */
#include <stdio.h>
#include <string.h>

#include "partition/schedule/order.h"
#include "partition/schedule/passes.h"

typedef struct writer {
  const opi_order *order;
  uint32_t format, dialect;
  opi_text *text;
  opipe_error *err;
} writer;

bool opi_order_is_lowered(const opi_order *order) {
  for (uint32_t i = 0; i < order->list->n_items; ++i) {
    const uint32_t kind = order->list->items[i].kind;
    if (opi_do_is_message(kind) || kind == OPI_DO_STEP)
      return true;
  }
  return false;
}

static bool is_chain(const opi_problem *p) {
  bool chain = p->n_edges + 1 == p->n_stages;
  for (uint32_t e = 0; chain && e < p->n_edges; ++e)
    chain = p->edges[e].src == e && p->edges[e].dst == e + 1;
  return chain;
}

/* A blank end would be read as no row. */
static bool ends_blank(const opi_do_list *list) {
  const uint32_t first = list->rank_first[list->n_ranks - 1], end = list->rank_first[list->n_ranks];
  return first == end || (first + 1 == end && list->items[first].kind == OPI_DO_IDLE);
}

/* Whether a reader would infer the same stages, places, micro-batches and mode from the cells. */
static bool shows_itself(const opi_order *order) {
  const opi_problem *p = &order->problem;
  const opi_do_list *list = order->list;
  uint32_t n_stages = 0, n_microbatches = 0, shown = 0;
  bool backward = false;
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &list->items[i];
      if (a->kind == OPI_DO_IDLE || a->kind == OPI_DO_STEP)
        continue;
      if (a->replica != 0 || a->slice != 0 || a->part != 0 || a->version != 0 ||
          (a->flags & OPIPE_ACTION_NEXT_STEP) != 0 || a->stage >= p->n_stages ||
          p->instance_rank[a->stage] != rank)
        return false;
      n_stages = a->stage >= n_stages ? a->stage + 1 : n_stages;
      n_microbatches = a->microbatch >= n_microbatches ? a->microbatch + 1 : n_microbatches;
      backward = backward || a->kind == OPI_DO_B || a->kind == OPI_DO_I || a->kind == OPI_DO_W;
      shown += a->kind == OPI_DO_F && a->microbatch == 0;
    }
  }
  return !ends_blank(list) && n_stages == p->n_stages && n_microbatches == p->n_microbatches &&
         shown >= p->n_stages && backward == (p->mode == OPIPE_MODE_TRAIN);
}

static bool has_groups(const opi_problem *p) {
  return p->n_copies > 1 || p->n_tensor > 1 || p->sharded || p->sequence || p->scattered;
}

/* Whether a table without header can express the whole order. */
static bool is_plain(const opi_order *order) {
  const opi_problem *p = &order->problem;
  return !has_groups(p) && p->n_replicas == 1 && p->n_slices == 1 && p->n_parts == 1 &&
         p->stage_shares == NULL && p->versions == OPIPE_VERSIONS_ONE &&
         p->sync == OPIPE_SYNC_END && is_chain(p) && shows_itself(order);
}

static const char *const mode_names[] = {"forward", "train"};
static const char *const version_names[] = {"one", "double"};
static const char *const sync_names[] = {"end", "eager", "eager-opt"};

static void put_numbers(opi_text *text, const uint32_t *values, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    if (values[i] == OPIPE_NONE)
      opi_text_printf(text, "%s-", i == 0 ? "" : ",");
    else
      opi_text_printf(text, "%s%u", i == 0 ? "" : ",", values[i]);
  }
}

static void put_edges(opi_text *text, const opi_problem *p) {
  for (uint32_t e = 0; e < p->n_edges; ++e)
    opi_text_printf(text, "%s%u>%u", e == 0 ? "" : ",", p->edges[e].src, p->edges[e].dst);
}

/* Appends the groups' keys to the header. */
static void put_groups(opi_text *text, const opi_problem *p, bool json) {
  const struct {
    const char *key;
    uint32_t value, preset;
  } keys[] = {{"copies", p->n_copies == 0 ? 1 : p->n_copies, 1},
              {"tensor", p->n_tensor == 0 ? 1 : p->n_tensor, 1},
              {"sharded", p->sharded, 0},
              {"sequence", p->sequence, 0},
              {"scattered", p->scattered, 0}};
  bool first = true;
  for (size_t i = 0; i < OPI_COUNT(keys); ++i) {
    if (keys[i].value == keys[i].preset)
      continue;
    if (json)
      opi_text_printf(text, "\"%s\": %u, ", keys[i].key, keys[i].value);
    else
      opi_text_printf(text, "%s%s=%u", first ? "\n#" : " ", keys[i].key, keys[i].value);
    first = false;
  }
}

static void put_header(const writer *w) {
  const opi_problem *p = &w->order->problem;
  opi_text_puts(w->text, "#onnx-pipe-schedule v1\n");
  opi_text_printf(w->text,
                  "#ranks=%u stages=%u replicas=%u microbatches=%u slices=%u parts=%u mode=%s "
                  "versions=%s sync=%s",
                  p->n_ranks, p->n_stages, p->n_replicas, p->n_microbatches, p->n_slices,
                  p->n_parts, mode_names[p->mode], version_names[p->versions], sync_names[p->sync]);
  put_groups(w->text, p, false);
  opi_text_puts(w->text, "\n#place=");
  put_numbers(w->text, p->instance_rank, p->n_stages * p->n_replicas);
  if (!is_chain(p)) {
    opi_text_puts(w->text, "\n#edges=");
    put_edges(w->text, p);
  }
  if (p->stage_shares != NULL) {
    opi_text_puts(w->text, "\n#shares=");
    put_numbers(w->text, p->stage_shares, p->n_stages);
  }
  if (p->slice_lengths != NULL) {
    opi_text_puts(w->text, "\n#lengths=");
    put_numbers(w->text, p->slice_lengths, p->n_slices);
  }
  opi_text_puts(w->text, "\n");
}

/* ---- dialects ---- */

static bool torch_knows(const opi_do *a) {
  return a->kind != OPI_DO_R && a->kind != OPI_DO_STEP && a->kind != OPI_DO_FREE &&
         (a->kind < OPI_DO_OFFLOAD || a->kind == OPI_DO_IDLE);
}

static opipe_status check_torch(const writer *w) {
  const opi_problem *p = &w->order->problem;
  const opi_do_list *list = w->order->list;
  if (w->format != OPI_ORDER_CSV)
    return opi_fail(w->err, OPIPE_E_UNSUPPORTED, "torch's dialect is one of CSV alone");
  for (uint32_t rank = 0; rank < list->n_ranks; ++rank) {
    for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
      const opi_do *a = &list->items[i];
      const bool jumps =
          opi_do_is_message(a->kind) && p->edges[a->edge].dst != p->edges[a->edge].src + 1;
      const char *why = !torch_knows(a)                            ? "there is no such action"
                        : a->kind == OPI_DO_IDLE                   ? NULL
                        : a->replica != 0                          ? "there are no replicas"
                        : p->n_slices > 1                          ? "there are no slices"
                        : p->n_parts > 1                           ? "there are no halves"
                        : a->version != 0                          ? "there are no weight versions"
                        : (a->flags & OPIPE_ACTION_NEXT_STEP) != 0 ? "mini-batches do not overlap"
                        : jumps ? "messages go to the next stage only"
                                : NULL;
      const opi_do_place place = opi_place_of(p, list, rank, i);
      if (why != NULL) {
        return opi_fail(w->err, OPIPE_E_UNSUPPORTED, "torch's dialect cannot express %s: %s in it",
                        place.text, why);
      }
    }
  }
  if (has_groups(p))
    return opi_fail(w->err, OPIPE_E_UNSUPPORTED, "torch's dialect has no groups of ranks");
  if (!is_chain(p)) {
    return opi_fail(w->err, OPIPE_E_UNSUPPORTED,
                    "torch's dialect cannot express edges that skip stages");
  }
  return OPIPE_OK;
}

/* ---- forms ---- */

static void put_rank(const writer *w, uint32_t rank, const char *separator, const char *idle,
                     const char *quote) {
  const opi_do_list *list = w->order->list;
  const uint32_t first = list->rank_first[rank];
  const opi_cell_form form = {separator, idle, quote, w->dialect};
  opi_cells_write(w->text, &w->order->problem, &list->items[first],
                  list->rank_first[rank + 1] - first, &form);
}

static void put_json(const writer *w) {
  const opi_problem *p = &w->order->problem;
  opi_text *t = w->text;
  opi_text_printf(t,
                  "{\"format\": \"onnx-pipe-schedule\", \"version\": 1, \"ranks\": %u, "
                  "\"stages\": %u, \"replicas\": %u, \"microbatches\": %u, \"slices\": %u, "
                  "\"parts\": %u, \"mode\": \"%s\", \"versions\": \"%s\", \"sync\": \"%s\",\n ",
                  p->n_ranks, p->n_stages, p->n_replicas, p->n_microbatches, p->n_slices,
                  p->n_parts, mode_names[p->mode], version_names[p->versions], sync_names[p->sync]);
  put_groups(t, p, true);
  opi_text_puts(t, "\"place\": \"");
  put_numbers(t, p->instance_rank, p->n_stages * p->n_replicas);
  if (!is_chain(p)) {
    opi_text_puts(t, "\",\n \"edges\": \"");
    put_edges(t, p);
  }
  if (p->stage_shares != NULL) {
    opi_text_puts(t, "\",\n \"shares\": \"");
    put_numbers(t, p->stage_shares, p->n_stages);
  }
  if (p->slice_lengths != NULL) {
    opi_text_puts(t, "\",\n \"lengths\": \"");
    put_numbers(t, p->slice_lengths, p->n_slices);
  }
  opi_text_puts(t, "\",\n \"actions\": [");
  for (uint32_t rank = 0; rank < p->n_ranks; ++rank) {
    opi_text_puts(t, rank == 0 ? "\n  [" : ",\n  [");
    put_rank(w, rank, ", ", "", "\"");
    opi_text_puts(t, "]");
  }
  opi_text_puts(t, "\n ]}\n");
}

opipe_status opi_order_write(const opi_order *order, uint32_t format, uint32_t dialect,
                             opi_text *text, opipe_error *err) {
  const writer w = {order, format, dialect, text, err};
  if (dialect != OPI_DIALECT_OPIPE)
    OPI_TRY(check_torch(&w));
  if (format == OPI_ORDER_JSON) {
    put_json(&w);
  } else {
    const bool csv = format == OPI_ORDER_CSV;
    if (!csv || (dialect == OPI_DIALECT_OPIPE && !is_plain(order)))
      put_header(&w);
    for (uint32_t rank = 0; rank < order->problem.n_ranks; ++rank) {
      if (!csv) {
        opi_text_printf(
            text, "rank %u:%s", rank,
            order->list->rank_first[rank] == order->list->rank_first[rank + 1] ? "" : " ");
      }
      put_rank(&w, rank, csv ? "," : " ", csv ? "" : "-", "");
      opi_text_puts(text, "\n");
    }
  }
  return text->failed ? opi_fail_nomem(err, text->room, "a schedule's text") : OPIPE_OK;
}

/* ---- orders ---- */

opipe_status opi_order_make(const opi_problem *problem, opi_do_list *list,
                            const opipe_allocator *allocator, opi_order **out_order,
                            opipe_error *err) {
  opi_order *order = opi_alloc_zero(allocator, 1, sizeof(*order));
  if (order == NULL) {
    opi_do_list_free(list);
    return opi_fail_nomem(err, sizeof(*order), "an order");
  }
  const size_t instances = (size_t)problem->n_stages * problem->n_replicas;
  opi_arena_init(&order->arena, allocator, 0);
  order->list = list;
  order->problem = *problem;
  opi_problem *p = &order->problem;
  p->instance_rank =
      opi_arena_copy(&order->arena, problem->instance_rank, instances * sizeof(uint32_t));
  p->edges = opi_arena_copy(&order->arena, problem->edges, problem->n_edges * sizeof(*p->edges));
  if (problem->stage_shares != NULL) {
    p->stage_shares =
        opi_arena_copy(&order->arena, problem->stage_shares, problem->n_stages * sizeof(uint32_t));
  }
  if (problem->slice_lengths != NULL) {
    p->slice_lengths =
        opi_arena_copy(&order->arena, problem->slice_lengths, problem->n_slices * sizeof(uint32_t));
  }
  if (problem->stash_bytes != NULL) {
    p->stash_bytes =
        opi_arena_copy(&order->arena, problem->stash_bytes, instances * sizeof(uint64_t));
  }
  if (problem->rank_stash_bytes != NULL) {
    p->rank_stash_bytes = opi_arena_copy(&order->arena, problem->rank_stash_bytes,
                                         problem->n_ranks * sizeof(uint64_t));
  }
  if (p->instance_rank == NULL || p->edges == NULL ||
      (problem->stage_shares != NULL && p->stage_shares == NULL) ||
      (problem->slice_lengths != NULL && p->slice_lengths == NULL) ||
      (problem->stash_bytes != NULL && p->stash_bytes == NULL) ||
      (problem->rank_stash_bytes != NULL && p->rank_stash_bytes == NULL)) {
    opi_order_free(order);
    return opi_fail_nomem(err, instances * sizeof(uint64_t), "an order");
  }
  *out_order = order;
  return OPIPE_OK;
}

void opi_order_free(opi_order *order) {
  if (order == NULL)
    return;
  const opipe_allocator *allocator = order->arena.allocator;
  opi_do_list_free(order->list);
  opi_arena_release(&order->arena);
  opi_free(allocator, order, sizeof(*order));
}
