/* SPDX-License-Identifier: Apache-2.0 */
/* From a play to lanes. A rank's time is divided without gaps into its programs and the causes of
 * its idle time. An operation that takes time and is no program is one cause, except a wait for a
 * message, whose sender may have had to make it first. */
#include "partition/study/page/play_page.h"

#include <math.h>
#include <stdlib.h>

#include "partition/study/page/lane.h"

typedef struct drawer {
  opi_page *page;
  const opi_order_played *played;
  const uint8_t *is_backward; /* [n_messages] */
  uint32_t n;                 /* classes of copies */
} drawer;

static opi_page_span program(const drawer *d, const opi_play_op *op, double start, double end) {
  const opi_do *a = &d->played->list->items[op->item];
  const bool is_pass = opi_do_is_compute(a->kind);
  const uint32_t kind = is_pass ? opi_lane_pass(a->kind) : OPI_SPAN_STEP;
  opi_page_span span = opi_lane_span(a, kind, start, end);
  if (!is_pass) {
    span.stage = span.microbatch = OPIPE_NONE;
    span.replica = span.slice = span.part = 0;
  }
  opi_play_op_bytes(&d->played->play, op, &span.take, &span.give);
  return span;
}

/* ---- causes of idle time ---- */

/* A barrier moves nothing: the rank has reached the end of its mini-batch. */
static uint32_t cause_of_sum(const opi_play *play, uint32_t collective) {
  const opi_play_group *g = &play->groups[play->collective_group[collective]];
  if (g->op == OPI_STASH_OUT || g->op == OPI_STASH_IN)
    return OPI_SPAN_COPY;
  return g->over_tensor               ? OPI_SPAN_TENSOR
         : g->times == 0              ? OPI_SPAN_DRAIN
         : g->op == OPI_OP_ALL_GATHER ? OPI_SPAN_GATHER
                                      : OPI_SPAN_REDUCE;
}

/* Until the message was sent, the rank waits for its sender. */
static void add_wait(const drawer *d, const opi_play_op *op, uint32_t class, double start,
                     double end) {
  opi_lane_wait(d->page, &d->played->list->items[op->item],
                d->is_backward[op->index] ? OPI_SPAN_WAIT_B : OPI_SPAN_WAIT_F,
                d->played->result.sent_at[(size_t)op->index * d->n + class], start, end);
}

/* began: the rank's first program has run; the time before that is one gap. */
static void add_other(const drawer *d, const opi_play_op *op, uint32_t class, double start,
                      double end, bool began) {
  const opi_do *a = &d->played->list->items[op->item];
  const bool sums = op->kind == OPI_PLAY_JOIN || op->kind == OPI_PLAY_START;
  if (op->kind == OPI_PLAY_WAIT) {
    if (began)
      add_wait(d, op, class, start, end);
    return;
  }
  const uint32_t kind = sums ? cause_of_sum(&d->played->play, op->index) : OPI_SPAN_LINK;
  opi_page_span span = opi_lane_span(a, kind, began ? start : end, end);
  opi_play_op_bytes(&d->played->play, op, &span.take, &span.give);
  opi_page_add_span(d->page, &span);
}

static void add_rank(const drawer *d, uint32_t rank) {
  const opi_play *play = &d->played->play;
  const opi_played *r = &d->played->result;
  const uint32_t list = rank / d->n, class = rank % d->n;
  opi_lane_cursor lane = {.page = d->page};
  for (uint32_t i = play->list_first[list]; i < play->list_first[list + 1]; ++i) {
    const opi_play_op *op = &play->ops[i];
    const double start = r->start[(size_t)i * d->n + class], end = r->end[(size_t)i * d->n + class];
    if (op->kind == OPI_PLAY_COMPUTE) {
      const opi_page_span span = program(d, op, start, end);
      opi_lane_program(&lane, &span);
      continue;
    }
    opi_lane_rest(&lane, start);
    add_other(d, op, class, start, end, lane.began);
    lane.at = lane.began ? fmax(lane.at, end) : lane.at;
  }
  opi_lane_end(&lane, r->makespan);
}

/* ---- lanes ---- */

static uint32_t device_of(const drawer *d, uint32_t rank) {
  const opi_play *play = &d->played->play;
  const uint32_t n_copies = play->n_tensor * play->n_data;
  uint32_t copy = 0;
  while (copy + 1 < n_copies && d->played->result.class_of[copy] != rank % d->n)
    ++copy;
  return play->device[(size_t)(rank / d->n) * n_copies + copy];
}

static opi_page_lane lane_of(const drawer *d, uint32_t rank) {
  const opi_cluster *c = d->played->play.cluster;
  const uint32_t device = device_of(d, rank);
  const char *name = c->classes == NULL ? NULL : c->classes[c->class_of[device]].name;
  return (opi_page_lane){
      .rank = rank / d->n,
      .peer = OPIPE_NONE,
      .copies = d->played->result.class_size[rank % d->n],
      .device = name == NULL ? c->devices[device].kind : name,
      .fixed_bytes = d->played->fixed_bytes[rank / d->n],
      .cap_bytes = c->descriptions == NULL ? 0 : (double)c->descriptions[device].memory_bytes};
}

/* ---- links ---- */

/* One message in its sender's list. */
typedef struct sent {
  double began;
  uint32_t message, item;
} sent;

static int by_beginning(const void *a, const void *b) {
  const sent *x = a, *y = b;
  return x->began < y->began ? -1 : x->began > y->began ? 1 : x->message < y->message ? -1 : 1;
}

static uint32_t receiver_of(const opi_play *play, const opi_play_op *op) {
  return play->streams[play->message_stream[op->index]].dst;
}

/* messages [n] of one pair of ranks, for the first class of copies. */
static void add_link(const drawer *d, uint32_t src, uint32_t dst, const sent *messages,
                     uint32_t n) {
  const opi_play *play = &d->played->play;
  const opi_page_lane lane = {
      .rank = src,
      .peer = dst,
      .copies = play->n_tensor * play->n_data,
      .message_bytes = play->streams[play->message_stream[messages[0].message]].n_bytes};
  opi_page_add_lane(d->page, &lane);
  for (uint32_t i = 0; i < n; ++i) {
    const opi_do *a = &d->played->list->items[messages[i].item];
    const uint32_t kind = a->kind == OPI_DO_SEND_F ? OPI_SPAN_SEND_F : OPI_SPAN_SEND_B;
    const opi_page_span span =
        opi_lane_span(a, kind, messages[i].began,
                      d->played->result.arrived_at[(size_t)messages[i].message * d->n]);
    opi_page_add_span(d->page, &span);
  }
}

/* Sorts a rank's messages by receiver. ends [lists]. */
static opipe_status add_links_of(const drawer *d, uint32_t list, uint32_t *ends, opi_arena *arena,
                                 opipe_error *err) {
  const opi_play *play = &d->played->play;
  const uint32_t first = play->list_first[list], end = play->list_first[list + 1];
  sent *messages = OPI_ARENA_ARRAY(arena, sent, (size_t)end - first + 1);
  uint32_t n = 0;
  if (messages == NULL)
    return opi_fail_nomem(err, (end - first) * sizeof *messages, "a page");
  for (uint32_t dst = 0; dst < play->n_lists; ++dst)
    ends[dst] = 0;
  for (uint32_t i = first; i < end; ++i) {
    if (play->ops[i].kind == OPI_PLAY_SEND)
      ++ends[receiver_of(play, &play->ops[i])];
  }
  for (uint32_t dst = 0; dst < play->n_lists; ++dst) { /* the start of its messages */
    const uint32_t own = ends[dst];
    ends[dst] = n;
    n += own;
  }
  for (uint32_t i = first; i < end; ++i) {
    const opi_play_op *op = &play->ops[i];
    if (op->kind == OPI_PLAY_SEND) {
      messages[ends[receiver_of(play, op)]++] =
          (sent){d->played->result.began_at[(size_t)op->index * d->n], op->index, op->item};
    }
  }
  for (uint32_t dst = 0, from = 0; dst < play->n_lists; from = ends[dst++]) {
    if (ends[dst] == from)
      continue;
    qsort(&messages[from], ends[dst] - from, sizeof *messages, by_beginning);
    add_link(d, list, dst, &messages[from], ends[dst] - from);
  }
  return OPIPE_OK;
}

/* ---- all of it ---- */

static opipe_status find_ways(drawer *d, opi_arena *arena, opipe_error *err) {
  const opi_play *play = &d->played->play;
  uint8_t *is_backward = OPI_ARENA_ARRAY(arena, uint8_t, (size_t)play->n_messages + 1);
  if (is_backward == NULL)
    return opi_fail_nomem(err, play->n_messages, "a page");
  for (uint32_t i = 0; i < play->list_first[play->n_lists]; ++i) {
    const opi_play_op *op = &play->ops[i];
    if (op->kind == OPI_PLAY_SEND)
      is_backward[op->index] = d->played->list->items[op->item].kind == OPI_DO_SEND_B;
  }
  d->is_backward = is_backward;
  return OPIPE_OK;
}

opipe_status opi_page_add_play(opi_page *page, const char *name, const opi_problem *problem,
                               const opi_order_played *played, const opi_play_report *report,
                               opi_arena *arena, opipe_error *err) {
  drawer d = {.page = page, .played = played, .n = played->result.n_classes};
  const bool repeats = problem->versions == OPIPE_VERSIONS_DOUBLE_BUFFERED;
  const double end = played->result.makespan;
  uint32_t *ends = OPI_ARENA_ARRAY(arena, uint32_t, (size_t)played->play.n_lists + 1);
  opi_text figures;
  if (ends == NULL)
    return opi_fail_nomem(err, played->play.n_lists * sizeof *ends, "a page");
  OPI_TRY(find_ways(&d, arena, err));
  opi_text_init(&figures, arena->allocator);
  opi_play_describe(report, true, &figures);
  opi_page_add_track(page, &(opi_page_track){.name = name,
                                             .figures = figures.data,
                                             .kept = "bytes",
                                             .end = end,
                                             .first = repeats ? (end - played->step_ns) / 2 : 0,
                                             .step = played->step_ns});
  opi_text_release(&figures);
  for (uint32_t rank = 0; rank < played->play.n_lists * d.n; ++rank) {
    const opi_page_lane lane = lane_of(&d, rank);
    opi_page_add_lane(page, &lane);
    add_rank(&d, rank);
  }
  opipe_status status = OPIPE_OK;
  for (uint32_t list = 0; status == OPIPE_OK && list < played->play.n_lists; ++list)
    status = add_links_of(&d, list, ends, arena, err);
  return status;
}
