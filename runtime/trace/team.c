/* SPDX-License-Identifier: Apache-2.0 */
/* The spans of all processes of a team, put together in each of them. Their clock is the machine's.
 */
#include <string.h>

#include "runtime/trace/trace.h"

/* A process's part: this head, a clock for each rank of the plan, its spans. */
typedef struct spans_head {
  uint64_t last; /* the request that its ranks ran last */
  uint32_t n_spans, n_ranks;
} spans_head;

typedef struct told_span {
  uint32_t pass; /* in opi_trace_passes */
  uint32_t rank, stage, replica, microbatch, slice;
  uint64_t start_ns, end_ns;
} told_span;

/* The spans of all, as they come. */
typedef struct merger {
  opi_trace_list *list;
  opi_trace_event *all; /* [n] */
  uint32_t n, room;
  uint64_t last; /* of the spans kept */
  bool damaged;
} merger;

static uint32_t number_of(const char *pass) {
  uint32_t i = 0;
  while (strcmp(opi_trace_passes[i], pass) != 0)
    ++i;
  return i;
}

static bool add(merger *m, const told_span *s) {
  if (s->pass >= OPI_TRACE_PASSES || s->rank >= m->list->n_ranks ||
      !opi_arena_grow(&m->list->arena, (void **)&m->all, &m->room, m->n + 1, sizeof *m->all))
    return false;
  m->all[m->n++] = (opi_trace_event){.pass = opi_trace_passes[s->pass],
                                     .kind = OPI_TRACE_MEASURED,
                                     .rank = s->rank,
                                     .stage = s->stage,
                                     .replica = s->replica,
                                     .microbatch = s->microbatch,
                                     .slice = s->slice,
                                     .start_ns = s->start_ns,
                                     .end_ns = s->end_ns};
  return true;
}

/* Keeps the spans of the request that ran last anywhere. */
static opipe_status take_part(void *ctx, uint32_t process, const void *data, uint64_t n_bytes) {
  merger *m = ctx;
  const uint8_t *at = data;
  spans_head h = {.n_spans = 0};
  (void)process;
  if (n_bytes >= sizeof h)
    memcpy(&h, at, sizeof h);
  if (h.n_ranks != m->list->n_ranks ||
      n_bytes != sizeof h + h.n_ranks + (uint64_t)h.n_spans * sizeof(told_span)) {
    m->damaged = true;
    return OPIPE_OK;
  }
  at += sizeof h;
  for (uint32_t r = 0; r < h.n_ranks; ++r)
    m->list->clocks[r] = at[r] > OPI_CLOCK_NONE && at[r] < OPI_CLOCKS ? at[r] : m->list->clocks[r];
  at += h.n_ranks;
  if (h.last > m->last) {
    m->n = 0;
    m->last = h.last;
  }
  for (uint32_t i = 0; i < h.n_spans && h.last == m->last; ++i, at += sizeof(told_span)) {
    told_span s;
    memcpy(&s, at, sizeof s);
    m->damaged = m->damaged || !add(m, &s);
  }
  return OPIPE_OK;
}

/* This process's part. */
static uint8_t *write_part(opi_trace_list *list, uint64_t last, uint64_t *out_bytes) {
  const spans_head h = {last, list->n, list->n_ranks};
  *out_bytes = sizeof h + list->n_ranks + (uint64_t)list->n * sizeof(told_span);
  uint8_t *part = opi_arena_alloc(&list->arena, (size_t)*out_bytes), *at = part;
  if (part == NULL)
    return NULL;
  memcpy(at, &h, sizeof h);
  memcpy(at + sizeof h, list->clocks, list->n_ranks);
  at += sizeof h + list->n_ranks;
  for (uint32_t i = 0; i < list->n; ++i, at += sizeof(told_span)) {
    const opi_trace_event *e = &list->events[i];
    const told_span s = {number_of(e->pass), e->rank,  e->stage,    e->replica,
                         e->microbatch,      e->slice, e->start_ns, e->end_ns};
    memcpy(at, &s, sizeof s);
  }
  return part;
}

opipe_status opi_trace_merge(const opi_together *together, opi_trace_list *list, uint64_t last,
                             opipe_status own, opipe_error *err) {
  merger m = {.list = list};
  const opipe_error why = own < 0 && err != NULL ? *err : (opipe_error)OPIPE_ERROR_INIT;
  uint64_t n_bytes = 0;
  uint8_t *part = NULL;
  if (together->gather == NULL)
    return own;
  if (own == OPIPE_OK) {
    part = write_part(list, last, &n_bytes);
    own = part == NULL ? opi_fail_nomem(err, n_bytes, "a trace") : OPIPE_OK;
  }
  const opipe_gather_params call = {.struct_size = (uint32_t)sizeof call,
                                    .name = "trace",
                                    .data = part,
                                    .n_bytes = part == NULL ? 0 : n_bytes,
                                    .timeout_ns = UINT64_MAX,
                                    .reason = why.message,
                                    .refused = own < 0 ? own : OPIPE_OK,
                                    .part = take_part,
                                    .part_ctx = &m};
  OPI_TRY(together->gather(together->ctx, &call, err));
  if (m.damaged)
    return opi_fail(err, OPIPE_E_NOMEM, "the spans of the other processes cannot be taken");
  list->events = m.all;
  list->n = m.n;
  list->room = m.room;
  return OPIPE_OK;
}
