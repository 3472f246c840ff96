/* SPDX-License-Identifier: Apache-2.0 */
/* The proof on exactly the lists that run: all ranks' steps replayed without times, mini-batch
 * after mini-batch, under the executor's own rules. A deadlock is an error.
 */
#include "partition/train/lists.h"

enum { MINI_BATCHES = 3 };

typedef struct proving {
  const opi_plan *plan;
  const opi_train_lists *lists;
  const opi_cut *cut;
  uint8_t *posted, *sent; /* [(n_items + 1) * n_messages] by mini-batch and message */
  uint32_t *item, *step;  /* [n_ranks] where each rank is */
  uint32_t n_items;
  bool periodic;
  opipe_error *err;
} proving;

/* Items of a double-buffered run: prologue, bodies, epilogue; else whole mini-batches. */
static bool takes_part(const proving *p, uint32_t item, const opi_step *step) {
  if (!p->periodic)
    return true;
  if (item == 0)
    return step->next == 1;
  return item + 1 < p->n_items || step->next == 0;
}

static size_t place(const proving *p, uint32_t item, const opi_step *step) {
  const uint32_t batch = p->periodic ? item + step->next - 1 : item;
  return (size_t)batch * p->lists->n_messages + step->route;
}

/* May the step happen? If so it does. */
static bool advance(proving *p, uint32_t item, const opi_step *step) {
  switch (step->kind) {
    case OPI_ACT_POST:
      p->posted[place(p, item, step)] = 1;
      return true;
    case OPI_ACT_SEND:
      p->sent[place(p, item, step)] = 1;
      return true;
    case OPI_ACT_RECV:
    case OPI_ACT_DRAIN:
      return p->posted[place(p, item, step)] != 0 && p->sent[place(p, item, step)] != 0;
    default:
      return true;
  }
}

static bool run_rank(proving *p, uint32_t rank) {
  const opi_train_lists *l = p->lists;
  bool moved = false;
  while (p->item[rank] < p->n_items) {
    for (; p->step[rank] < l->rank_first[rank + 1]; ++p->step[rank]) {
      const opi_step *step = &l->steps[p->step[rank]];
      if (takes_part(p, p->item[rank], step) && !advance(p, p->item[rank], step))
        return moved;
      moved = true;
    }
    p->step[rank] = l->rank_first[rank];
    ++p->item[rank];
    moved = true;
  }
  return moved;
}

static opipe_status stuck(const proving *p) {
  for (uint32_t rank = 0; rank < p->plan->n_ranks; ++rank) {
    if (p->item[rank] == p->n_items)
      continue;
    const opi_step *step = &p->lists->steps[p->step[rank]];
    const opi_train_message *m = &p->lists->messages[step->route];
    const opi_route *route = &p->cut->routes[m->route];
    const opi_train_stream *stream = &p->lists->streams[m->stream];
    return opi_fail(p->err, OPIPE_E_INVALID,
                    "schedule '%s' deadlocks: rank %u at step %u, tensor '%s' of micro-batch %u "
                    "from rank %u (stage %u) to rank %u (stage %u) was %s",
                    p->plan->schedule, rank, p->step[rank] - p->lists->rank_first[rank],
                    p->cut->cells[route->src_cell].name, m->microbatch, stream->src_rank,
                    route->src_stage, stream->dst_rank, route->dst_stage,
                    p->posted[place(p, p->item[rank], step)] == 0 ? "never awaited" : "never sent");
  }
  return OPIPE_OK;
}

static opipe_status prove(proving *p, opi_arena *scratch) {
  const uint32_t n_ranks = p->plan->n_ranks;
  const size_t n = (size_t)(p->n_items + 1) * p->lists->n_messages;
  p->posted = OPI_ARENA_ARRAY(scratch, uint8_t, n);
  p->sent = OPI_ARENA_ARRAY(scratch, uint8_t, n);
  p->item = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  p->step = OPI_ARENA_ARRAY(scratch, uint32_t, n_ranks);
  if (p->posted == NULL || p->sent == NULL || p->item == NULL || p->step == NULL)
    return opi_fail_nomem(p->err, n, "a proof");
  for (uint32_t rank = 0; rank < n_ranks; ++rank)
    p->step[rank] = p->lists->rank_first[rank];
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t rank = 0; rank < n_ranks; ++rank)
      moved = run_rank(p, rank) || moved;
  }
  return stuck(p);
}

opipe_status opi_train_lists_prove(const opi_plan *plan, const opi_train_lists *lists,
                                   const opi_cut *cut, const opipe_allocator *allocator,
                                   opipe_error *err) {
  const bool periodic = plan->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  proving p = {.plan = plan,
               .lists = lists,
               .cut = cut,
               .n_items = periodic ? MINI_BATCHES + 1 : 2,
               .periodic = periodic,
               .err = err};
  opi_arena scratch;
  opi_arena_init(&scratch, allocator, 0);
  const opipe_status status = prove(&p, &scratch);
  opi_arena_release(&scratch);
  return status;
}
