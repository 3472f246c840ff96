/* SPDX-License-Identifier: Apache-2.0 */
/* Sorts events into lanes by rank and time, and finds the causes of waits from the times at which
 * other ranks made the tensors that a program reads. */
#include "runtime/trace/page.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "loader/base/json.h"
#include "partition/study/page/plan_page.h"

/* The last program that made a tensor of a micro-batch and slice. */
typedef struct maker {
  double end; /* 0: none has */
  uint32_t rank;
} maker;

enum { FORWARD = 0, BACKWARD = 1, WAYS = 2 };

typedef struct tracer {
  const opi_plan *plan;
  const uint8_t *clocks; /* [n_ranks] of the track; NULL: it is planned */
  opi_page *page;
  maker *makers; /* [((stage * M + microbatch) * slices + slice) * WAYS + way] */
  uint64_t n_makers;
  uint32_t n_slices;
  double end;
} tracer;

/* ---- events ---- */

static uint32_t kind_of(const opi_trace_event *e) {
  static const struct {
    char first;
    uint32_t kind;
  } kinds[] = {{'F', OPI_SPAN_F},   {'B', OPI_SPAN_B},      {'I', OPI_SPAN_I},
               {'W', OPI_SPAN_W},   {'r', OPI_SPAN_REDUCE}, {'s', OPI_SPAN_REDUCE},
               {'u', OPI_SPAN_STEP}};
  if (strcmp(e->pass, "offload") == 0 || strcmp(e->pass, "reload") == 0)
    return OPI_SPAN_COPY;
  for (size_t i = 0; i < OPI_COUNT(kinds); ++i) {
    if (kinds[i].first == e->pass[0])
      return kinds[i].kind;
  }
  return OPI_SPAN_OTHER;
}

static bool is_beside(const opi_trace_event *e) {
  return e->microbatch == OPIPE_NONE && e->stage != OPIPE_NONE;
}

static int by_lane(const void *a, const void *b) {
  const opi_trace_event *x = a, *y = b;
  if (x->kind != y->kind)
    return x->kind < y->kind ? -1 : 1;
  if (is_beside(x) != is_beside(y))
    return is_beside(y) ? -1 : 1;
  if (x->rank != y->rank)
    return x->rank < y->rank ? -1 : 1;
  return x->start_ns < y->start_ns ? -1 : x->start_ns > y->start_ns;
}

/* ---- makers ---- */

static maker *maker_of(const tracer *t, const opi_trace_event *e, uint32_t stage, uint32_t way) {
  const uint64_t at =
      ((uint64_t)stage * t->plan->decided.n_microbatches + e->microbatch) * t->n_slices +
      (e->slice == 0 ? 0 : e->slice - 1);
  return e->microbatch >= t->plan->decided.n_microbatches || at * WAYS + way >= t->n_makers
             ? NULL
             : &t->makers[at * WAYS + way];
}

static void note_maker(const tracer *t, const opi_trace_event *e) {
  const uint32_t kind = kind_of(e), way = kind == OPI_SPAN_F ? FORWARD : BACKWARD;
  if (kind != OPI_SPAN_F && kind != OPI_SPAN_B && kind != OPI_SPAN_I)
    return;
  maker *m = maker_of(t, e, e->stage, way);
  if (m != NULL && (double)e->end_ns > m->end)
    *m = (maker){(double)e->end_ns, e->rank};
}

/* When the last tensor was made that a program reads from other ranks; < 0: it reads none. */
static double made_for(const tracer *t, const opi_trace_event *e, uint32_t way) {
  double last = -1;
  for (uint32_t i = 0; i < t->plan->predicted.n_crossings; ++i) {
    const opi_crossing *c = &t->plan->predicted.crossings[i];
    const uint32_t reads = way == FORWARD ? c->dst_stage : c->src_stage;
    const maker *m = reads != e->stage
                         ? NULL
                         : maker_of(t, e, way == FORWARD ? c->src_stage : c->dst_stage, way);
    if (m != NULL && m->end > 0 && m->rank != e->rank && m->end > last)
      last = m->end;
  }
  return last;
}

/* ---- lanes ---- */

static opi_page_span span_of(const opi_trace_event *e, uint32_t kind, double start, double end) {
  return (opi_page_span){.kind = kind,
                         .stage = e->stage,
                         .microbatch = e->microbatch,
                         .replica = e->replica,
                         .slice = e->slice == 0 ? 0 : e->slice - 1,
                         .start = start,
                         .end = end};
}

static void set_kept(const tracer *t, const opi_trace_event *e, opi_page_span *io_span) {
  const opi_plan *plan = t->plan;
  if (plan->predicted.stage_stash_bytes == NULL || e->stage >= plan->decided.n_stages)
    return;
  const double share = plan->decided.shares == NULL ? 1 : plan->decided.shares[e->stage];
  const double n_bytes = (double)plan->predicted.stage_stash_bytes[e->stage] / t->n_slices / share;
  if (io_span->kind == OPI_SPAN_F)
    io_span->take = n_bytes;
  if (io_span->kind == OPI_SPAN_B || io_span->kind == OPI_SPAN_W)
    io_span->give = n_bytes / (plan->decided.n_parts == 0 ? 1 : plan->decided.n_parts);
}

static void add_wait(const tracer *t, const opi_trace_event *e, uint32_t kind, double at) {
  const double start = (double)e->start_ns;
  const uint32_t way = kind == OPI_SPAN_F ? FORWARD : BACKWARD;
  const bool reads = kind == OPI_SPAN_F || kind == OPI_SPAN_B || kind == OPI_SPAN_I;
  const double last = reads ? made_for(t, e, way) : -1;
  if (last < 0) {
    const opi_page_span other =
        span_of(e, kind == OPI_SPAN_STEP ? OPI_SPAN_REDUCE : OPI_SPAN_OTHER, at, start);
    opi_page_add_span(t->page, &other);
    return;
  }
  const double made = fmin(fmax(last, at), start);
  const opi_page_span waits =
      span_of(e, way == FORWARD ? OPI_SPAN_WAIT_F : OPI_SPAN_WAIT_B, at, made);
  const opi_page_span travels = span_of(e, OPI_SPAN_LINK, made, start);
  opi_page_add_span(t->page, &waits);
  opi_page_add_span(t->page, &travels);
}

static void add_gap(const tracer *t, uint32_t kind, double start, double end) {
  const opi_page_span span = {
      .kind = kind, .stage = OPIPE_NONE, .microbatch = OPIPE_NONE, .start = start, .end = end};
  opi_page_add_span(t->page, &span);
}

static void open_lane(const tracer *t, uint32_t rank, bool beside) {
  const opi_plan *plan = t->plan;
  const opi_memory *m = plan->predicted.memory == NULL ? NULL : &plan->predicted.memory[rank];
  opi_page_add_lane(
      t->page,
      &(opi_page_lane){
          .rank = rank,
          .peer = beside ? rank : OPIPE_NONE,
          .copies = 1,
          .device = plan->decided.devices[rank].kind,
          .clock =
              t->clocks == NULL ? NULL : opi_clock_names[beside ? OPI_CLOCK_HOST : t->clocks[rank]],
          .fixed_bytes = m == NULL ? 0 : (double)(m->total_bytes - m->stash_bytes),
          .cap_bytes = m == NULL || m->cap_bytes == UINT64_MAX ? 0 : (double)m->cap_bytes});
}

/* events [n] of one rank, sorted. */
static void add_rank(const tracer *t, uint32_t rank, const opi_trace_event *events, uint32_t n) {
  double at = 0;
  open_lane(t, rank, false);
  for (uint32_t i = 0; i < n; ++i) {
    const opi_trace_event *e = &events[i];
    const uint32_t kind = kind_of(e);
    opi_page_span span = span_of(e, kind, (double)e->start_ns, (double)e->end_ns);
    set_kept(t, e, &span);
    if (i == 0)
      add_gap(t, OPI_SPAN_FILL, at, span.start);
    else if (span.start > at)
      add_wait(t, e, kind, at);
    opi_page_add_span(t->page, &span);
    at = fmax(at, span.end);
  }
  add_gap(t, OPI_SPAN_DRAIN, at, t->end);
}

static void add_beside(const tracer *t, const opi_trace_event *events, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    const opi_trace_event *e = &events[i];
    const opi_page_span span = span_of(e, kind_of(e), (double)e->start_ns, (double)e->end_ns);
    if (i == 0 || e->rank != events[i - 1].rank)
      open_lane(t, e->rank, true);
    opi_page_add_span(t->page, &span);
  }
}

/* ---- tracks ---- */

/* events [n] of one kind, sorted. */
static void add_track(tracer *t, const char *name, const opi_trace_event *events, uint32_t n) {
  uint32_t i = 0;
  opi_text figures;
  t->end = 0;
  for (uint64_t k = 0; k < t->n_makers; ++k)
    t->makers[k] = (maker){0, OPIPE_NONE};
  for (uint32_t k = 0; k < n; ++k) {
    note_maker(t, &events[k]);
    t->end = fmax(t->end, (double)events[k].end_ns);
  }
  opi_text_init(&figures, t->page->data.allocator);
  opi_text_puts(&figures, "{\"step_ns\": ");
  opi_json_double(&figures, t->end);
  opi_text_puts(&figures, "}");
  opi_page_add_track(t->page, &(opi_page_track){.name = name,
                                                .figures = figures.data,
                                                .kept = "bytes",
                                                .end = t->end,
                                                .first = 0,
                                                .step = t->end});
  opi_text_release(&figures);
  for (uint32_t rank = 0; rank < t->plan->decided.n_ranks; ++rank) {
    uint32_t end = i;
    while (end < n && !is_beside(&events[end]) && events[end].rank == rank)
      ++end;
    add_rank(t, rank, &events[i], end - i);
    i = end;
  }
  add_beside(t, &events[i], n - i);
}

opipe_status opi_trace_page(const opi_plan *plan, const char *title, const opi_trace_list *list,
                            const opipe_allocator *allocator, opipe_write_fn write, void *ctx,
                            opipe_error *err) {
  const uint32_t n = list->n;
  opi_page page;
  opi_arena arena;
  opi_text decided;
  uint32_t n_measured = 0;
  tracer t = {.plan = plan,
              .page = &page,
              .n_slices = plan->decided.n_slices < 2 ? 1 : plan->decided.n_slices};
  t.n_makers = (uint64_t)plan->decided.n_stages * plan->decided.n_microbatches * t.n_slices * WAYS;
  opi_arena_init(&arena, allocator, 0);
  opi_trace_event *sorted = opi_arena_copy(&arena, list->events, n * sizeof *list->events);
  t.makers = OPI_ARENA_ARRAY(&arena, maker, (size_t)t.n_makers);
  if (sorted == NULL || t.makers == NULL) {
    opi_arena_release(&arena);
    return opi_fail_nomem(err, n * sizeof *sorted, "a page");
  }
  qsort(sorted, n, sizeof *sorted, by_lane);
  while (n_measured < n && sorted[n_measured].kind == OPI_TRACE_MEASURED)
    ++n_measured;
  opi_page_begin(&page, allocator, title == NULL ? "" : title, "ns");
  opi_text_init(&decided, allocator);
  add_track(&t, "planned", &sorted[n_measured], n - n_measured);
  t.clocks = list->clocks;
  add_track(&t, "measured", sorted, n_measured);
  opi_page_describe_plan(plan, &decided);
  opi_page_add_member(&page, "plan", decided.data);
  const opipe_status status = decided.failed ? opi_fail_nomem(err, decided.room, "a page")
                                             : opi_page_write(&page, write, ctx, err);
  opi_text_release(&decided);
  opi_page_release(&page);
  opi_arena_release(&arena);
  return status;
}
