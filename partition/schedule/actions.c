/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of actions, their text, and the index that passes and proof look things up in. */
#include "partition/schedule/actions.h"

#include <stdio.h>
#include <string.h>

#include "partition/schedule/passes.h"

/* ---- lists ---- */

static opipe_status make_room(opi_do_list *list, uint32_t room, opipe_error *err) {
  opi_do *items = opi_resize(list->arena.allocator, list->items, list->room * sizeof *items,
                             room * sizeof *items);
  if (items == NULL)
    return opi_fail_nomem(err, room * sizeof *items, "actions");
  list->items = items;
  list->room = room;
  return OPIPE_OK;
}

opipe_status opi_do_list_create(const opipe_allocator *allocator, uint32_t n_ranks,
                                uint64_t n_items, opi_do_list **out_list, opipe_error *err) {
  if (n_items > OPI_ACTIONS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT, "a list of %llu actions: at most %d are possible",
                    (unsigned long long)n_items, OPI_ACTIONS_MOST);
  }
  opi_do_list *list = opi_alloc_zero(allocator, 1, sizeof(*list));
  if (list == NULL)
    return opi_fail_nomem(err, sizeof(*list), "a list of actions");
  opi_arena_init(&list->arena, allocator, 0);
  list->n_ranks = n_ranks;
  list->rank_first = OPI_ARENA_ARRAY(&list->arena, uint32_t, (size_t)n_ranks + 1);
  if (list->rank_first == NULL) {
    opi_do_list_free(list);
    return opi_fail_nomem(err, ((uint64_t)n_ranks + 1) * sizeof(uint32_t), "a list of actions");
  }
  const opipe_status status = n_items == 0 ? OPIPE_OK : make_room(list, (uint32_t)n_items, err);
  if (status < 0) {
    opi_do_list_free(list);
    return status;
  }
  *out_list = list;
  return OPIPE_OK;
}

void opi_do_list_free(opi_do_list *list) {
  if (list == NULL)
    return;
  const opipe_allocator *allocator = list->arena.allocator;
  opi_free(allocator, list->items, list->room * sizeof *list->items);
  opi_arena_release(&list->arena);
  opi_free(allocator, list, sizeof(*list));
}

opipe_status opi_do_list_add(opi_do_list *list, opi_do item, opipe_error *err) {
  if (list->n_items >= OPI_ACTIONS_MOST)
    return opi_fail(err, OPIPE_E_LIMIT, "a list of more than %d actions", OPI_ACTIONS_MOST);
  if (list->n_items == list->room)
    OPI_TRY(make_room(list, list->room == 0 ? 8 : list->room * 2, err));
  list->items[list->n_items++] = item;
  return OPIPE_OK;
}

void opi_do_list_rank(opi_do_list *list, uint32_t rank) {
  list->rank_first[rank] = list->n_items;
}

uint32_t opi_do_list_count(const opi_do_list *list, uint32_t kinds) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < list->n_items; ++i)
    n += kinds >> list->items[i].kind & 1;
  return n;
}

static uint8_t kind_of_record(const opipe_action *record) {
  switch (record->pass) {
    case OPIPE_PASS_FORWARD:
      return OPI_DO_F;
    case OPIPE_PASS_BACKWARD:
      return OPI_DO_B;
    case OPIPE_PASS_BACKWARD_INPUT:
      return OPI_DO_I;
    case OPIPE_PASS_BACKWARD_WEIGHT:
      return OPI_DO_W;
    case OPIPE_CELL_IDLE:
      return OPI_DO_IDLE;
    default:
      return OPI_DO_KINDS;
  }
}

/* Backwards may recompute their forward; other flags are checked where plans are made. */
static bool has_flags_of(const opipe_action *record, uint32_t kind) {
  const uint32_t again =
      kind == OPI_DO_B || kind == OPI_DO_I ? (uint32_t)OPIPE_ACTION_RECOMPUTE : 0;
  return (record->flags & ~(again | OPIPE_ACTION_OVERLAP_NEXT | OPIPE_ACTION_NEXT_STEP)) == 0;
}

bool opi_do_of_record(const opipe_action *record, opi_do *out) {
  const uint8_t kind = kind_of_record(record);
  *out = (opi_do){.kind = OPI_DO_IDLE, .stage = OPIPE_NONE, .edge = OPIPE_NONE};
  if (kind != OPI_DO_IDLE) {
    *out = (opi_do){.stage = record->stage,
                    .microbatch = record->microbatch,
                    .edge = OPIPE_NONE,
                    .replica = record->replica,
                    .slice = record->slice,
                    .version = record->version,
                    .kind = kind,
                    .part = record->part,
                    .flags = (uint16_t)(record->flags & ~(uint32_t)OPIPE_ACTION_RECOMPUTE)};
  }
  return kind != OPI_DO_KINDS && (kind == OPI_DO_IDLE || has_flags_of(record, kind));
}

bool opi_record_of_do(const opi_do *item, uint32_t rank, opipe_action *out) {
  static const uint8_t passes[] = {OPIPE_PASS_FORWARD, OPIPE_PASS_BACKWARD,
                                   OPIPE_PASS_BACKWARD_INPUT, OPIPE_PASS_BACKWARD_WEIGHT};
  if (item->kind > OPI_DO_W)
    return false;
  *out = (opipe_action){.rank = rank,
                        .stage = item->stage,
                        .microbatch = item->microbatch,
                        .replica = item->replica,
                        .slice = item->slice,
                        .version = item->version,
                        .pass = passes[item->kind],
                        .part = item->part,
                        .flags = item->flags};
  return true;
}

/* A backward with recomputation is two actions. */
static opipe_status add_record(opi_do_list *list, const opipe_action *record, opipe_error *err) {
  opi_do item;
  if (!opi_do_of_record(record, &item)) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "rank %u, stage %u, micro-batch %u: pass %u has no form with flags 0x%x",
                    record->rank, record->stage, record->microbatch, record->pass, record->flags);
  }
  if ((record->flags & OPIPE_ACTION_RECOMPUTE) != 0 &&
      (item.kind == OPI_DO_B || item.kind == OPI_DO_I)) {
    opi_do again = item;
    again.kind = OPI_DO_R;
    again.flags = 0;
    OPI_TRY(opi_do_list_add(list, again, err));
  }
  return opi_do_list_add(list, item, err);
}

opipe_status opi_do_list_from_records(const opi_problem *problem, const opipe_action *records,
                                      uint32_t n_records, const opipe_allocator *allocator,
                                      opi_do_list **out_list, opipe_error *err) {
  opi_do_list *list = NULL;
  opi_arena scratch;
  opi_arena_init(&scratch, allocator, 0);
  uint64_t n_items = n_records;
  for (uint32_t i = 0; i < n_records; ++i)
    n_items += (records[i].flags & OPIPE_ACTION_RECOMPUTE) != 0;
  opipe_status status = opi_do_list_create(allocator, problem->n_ranks, n_items, &list, err);
  uint32_t *at = OPI_ARENA_ARRAY(&scratch, uint32_t, (size_t)problem->n_ranks + 1);
  uint32_t *order = OPI_ARENA_ARRAY(&scratch, uint32_t, (size_t)n_records + 1);
  if (status == OPIPE_OK && (at == NULL || order == NULL))
    status = opi_fail_nomem(err, (uint64_t)n_records * sizeof(uint32_t), "records");
  for (uint32_t i = 0; status == OPIPE_OK && i < n_records; ++i) {
    if (records[i].rank >= problem->n_ranks) {
      status = opi_fail(err, OPIPE_E_INVALID, "record %u: rank %u of %u", i, records[i].rank,
                        problem->n_ranks);
    } else {
      ++at[records[i].rank + 1];
    }
  }
  for (uint32_t r = 0; status == OPIPE_OK && r < problem->n_ranks; ++r)
    at[r + 1] += at[r];
  for (uint32_t i = 0; status == OPIPE_OK && i < n_records; ++i)
    order[at[records[i].rank]++] = i;
  for (uint32_t i = 0, rank = 0; status == OPIPE_OK && i < n_records; ++i) {
    for (; rank <= records[order[i]].rank; ++rank)
      opi_do_list_rank(list, rank);
    status = add_record(list, &records[order[i]], err);
  }
  if (status == OPIPE_OK) {
    const uint32_t next = n_records == 0 ? 0 : records[order[n_records - 1]].rank + 1;
    for (uint32_t rank = next; rank <= problem->n_ranks; ++rank)
      opi_do_list_rank(list, rank);
  }
  opi_arena_release(&scratch);
  if (status < 0) {
    opi_do_list_free(list);
    return status;
  }
  *out_list = list;
  return OPIPE_OK;
}

opipe_status opi_each_rank(const opi_do_list *list, opi_rank_fn fn, void *ctx, uint64_t n_items,
                           const opipe_allocator *allocator, opi_do_list **out_list,
                           opipe_error *err) {
  opi_do_list *out = NULL;
  OPI_TRY(opi_do_list_create(allocator, list->n_ranks, n_items, &out, err));
  opipe_status status = OPIPE_OK;
  for (uint32_t rank = 0; rank < list->n_ranks && status == OPIPE_OK; ++rank) {
    opi_do_list_rank(out, rank);
    status = fn(ctx, list, rank, out, err);
  }
  opi_do_list_rank(out, list->n_ranks);
  if (status < 0) {
    opi_do_list_free(out);
    return status;
  }
  *out_list = out;
  return OPIPE_OK;
}

static opipe_status without_rank(void *ctx, const opi_do_list *list, uint32_t rank,
                                 opi_do_list *out, opipe_error *err) {
  const uint32_t *kind = ctx;
  for (uint32_t i = list->rank_first[rank]; i < list->rank_first[rank + 1]; ++i) {
    if (list->items[i].kind != *kind)
      OPI_TRY(opi_do_list_add(out, list->items[i], err));
  }
  return OPIPE_OK;
}

opipe_status opi_do_list_without(const opi_do_list *list, uint32_t kind,
                                 const opipe_allocator *allocator, opi_do_list **out_list,
                                 opipe_error *err) {
  const uint64_t n = list->n_items - opi_do_list_count(list, 1u << kind);
  return opi_each_rank(list, without_rank, &kind, n, allocator, out_list, err);
}

void opi_edges_chain(opi_stage_edge *edges, uint32_t n_stages) {
  for (uint32_t s = 0; s + 1 < n_stages; ++s)
    edges[s] = (opi_stage_edge){s, s + 1};
}

/* ---- text ---- */

static const char *const kind_names[OPI_DO_KINDS] = {
    "F",        "B",         "I",         "W",      "R",     "SEND_F",  "RECV_F",
    "SEND_B",   "RECV_B",    "REDUCE",    "STEP",   "FREE",  "UNSHARD", "RESHARD",
    "OFFLOAD",  "RELOAD",    "SCATTER",   "GATHER", "SUM_F", "SUM_B",   "GATHER_F",
    "GATHER_B", "SCATTER_F", "SCATTER_B", "IDLE"};

bool opi_do_is_compute(uint32_t kind) {
  return kind <= OPI_DO_R;
}

bool opi_do_is_message(uint32_t kind) {
  return kind >= OPI_DO_SEND_F && kind <= OPI_DO_RECV_B;
}

bool opi_do_is_group(uint32_t kind) {
  return kind >= OPI_DO_SUM_F && kind <= OPI_DO_SCATTER_B;
}

bool opi_do_group_is_backward(uint32_t kind) {
  return kind == OPI_DO_SUM_B || kind == OPI_DO_GATHER_B || kind == OPI_DO_SCATTER_B;
}

bool opi_do_group_is_before(uint32_t kind) {
  return kind == OPI_DO_GATHER_F || kind == OPI_DO_GATHER_B;
}

const char *opi_do_kind_name(uint32_t kind) {
  return kind < OPI_DO_KINDS ? kind_names[kind] : "?";
}

bool opi_do_has_microbatch(uint32_t kind) {
  return kind != OPI_DO_REDUCE && kind != OPI_DO_SCATTER && kind != OPI_DO_GATHER &&
         kind != OPI_DO_STEP && kind != OPI_DO_UNSHARD && kind != OPI_DO_RESHARD &&
         kind != OPI_DO_IDLE;
}

/* Whether actions of this kind concern all parts of a slice at once. */
static bool is_whole(uint32_t kind) {
  return kind == OPI_DO_F || kind == OPI_DO_SEND_F || kind == OPI_DO_RECV_F ||
         kind == OPI_DO_OFFLOAD || kind == OPI_DO_RELOAD ||
         (opi_do_is_group(kind) && !opi_do_group_is_backward(kind));
}

typedef struct line {
  char *data;
  size_t n, room;
} line;

OPIPE_PRINTF(2, 3) static void put(line *l, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(l->data + l->n, l->room - l->n, fmt, args);
  va_end(args);
  if (n > 0)
    l->n = l->n + (size_t)n < l->room ? l->n + (size_t)n : l->room - 1;
}

/* Appends the other end, where it is not the neighbour in the chain. */
static void put_peer(line *l, const opi_problem *p, const opi_do *item) {
  if (!opi_do_is_message(item->kind) || item->edge >= p->n_edges)
    return;
  const opi_stage_edge edge = p->edges[item->edge];
  const uint32_t other = item->stage == edge.src ? edge.dst : edge.src;
  if (edge.dst != edge.src + 1 || item->peer != item->replica)
    put(l, ">%u", other);
  if (item->peer != item->replica)
    put(l, "@%u", item->peer);
}

const char *opi_do_text(const opi_problem *problem, const opi_do *item, char *buffer, size_t room) {
  line l = {buffer, 0, room};
  buffer[0] = '\0';
  if (item->kind == OPI_DO_IDLE)
    return buffer;
  if (item->stage != OPIPE_NONE)
    put(&l, "%u", item->stage);
  if (item->replica != 0)
    put(&l, "@%u", item->replica);
  put(&l, "%s", opi_do_kind_name(item->kind));
  const bool counted = opi_do_has_microbatch(item->kind);
  if (counted)
    put(&l, "%u", item->microbatch);
  if (problem->n_slices > 1 && counted)
    put(&l, "/%u", item->slice);
  if (item->part != 0 || (problem->n_parts > 1 && counted && !is_whole(item->kind)))
    put(&l, "~%u", item->part);
  if (item->version != 0)
    put(&l, "'%u", item->version);
  if ((item->flags & OPIPE_ACTION_NEXT_STEP) != 0)
    put(&l, "+");
  put_peer(&l, problem, item);
  return buffer;
}

opi_do_place opi_place_of(const opi_problem *problem, const opi_do_list *list, uint32_t rank,
                          uint32_t item) {
  opi_do_place place;
  char text[64];
  (void)snprintf(place.text, sizeof place.text, "rank %u, step %u: %s", rank,
                 item - list->rank_first[rank],
                 opi_do_text(problem, &list->items[item], text, sizeof text));
  return place;
}
