/* SPDX-License-Identifier: Apache-2.0 */
/* Schedule "dualpipev": two stages per rank in a V; in the steady phase every forward shares a slot
 * with a backward of the other stage (DeepSeek-AI, DualPipe, the form that is cut in half).
 *
 * A rank goes through eight phases whose lengths follow from its number. The pairs carry the flag
 * OVERLAP_NEXT on their forward; a backend without overlap runs them one after the other. The
 * phases need 2p micro-batches: with fewer, the order for 2p is made and the missing ones left out,
 * which keeps whatever is needed in front of what needs it.
 */
#include <opipe/orders.h>

struct opipe_instance {
  const opipe_host *host;
};

typedef struct cell {
  uint32_t chunk; /* 0: the rank's lower stage, 1: its upper one */
  uint32_t microbatch;
} cell;

/* One rank while its order is made. */
typedef struct lane {
  const opipe_schedule_problem *problem;
  opipe_emit_fn emit;
  void *emit_ctx;
  opipe_error *err;
  opipe_status status; /* the sink's first error */
  uint32_t stage[2];
  uint32_t forward[2];  /* next micro-batch of each chunk */
  uint32_t backward[2]; /* the same, of B or I */
  cell *weights;        /* W that wait, first in first out */
  uint32_t first, end;
} lane;

static void push(lane *l, cell at, uint32_t pass, uint32_t flags) {
  if (l->status >= 0 && at.microbatch < l->problem->n_microbatches) {
    l->status = opipe_emit_pass(l->problem, l->emit, l->emit_ctx, l->stage[at.chunk], at.microbatch,
                                0, pass, flags, l->err);
  }
}

static void forward(lane *l, uint32_t chunk) {
  push(l, (cell){chunk, l->forward[chunk]++}, OPIPE_PASS_FORWARD, 0);
}

static void backward(lane *l, uint32_t chunk) {
  push(l, (cell){chunk, l->backward[chunk]++}, OPIPE_PASS_BACKWARD, 0);
}

static void input(lane *l, uint32_t chunk) {
  const cell at = {chunk, l->backward[chunk]++};
  push(l, at, OPIPE_PASS_BACKWARD_INPUT, 0);
  l->weights[l->end++] = at;
}

static void weight(lane *l) {
  push(l, l->weights[l->first++], OPIPE_PASS_BACKWARD_WEIGHT, 0);
}

/* F of one chunk and B of the other in one slot. */
static void pair(lane *l, uint32_t forward_chunk) {
  const uint32_t m = l->problem->n_microbatches, other = 1 - forward_chunk;
  const bool both = l->forward[forward_chunk] < m && l->backward[other] < m;
  push(l, (cell){forward_chunk, l->forward[forward_chunk]++}, OPIPE_PASS_FORWARD,
       both ? OPIPE_ACTION_OVERLAP_NEXT : 0);
  backward(l, other);
}

/* Forwards alone, then the first backwards of the upper stage. */
static void warm_up(lane *l, uint32_t p, uint32_t rank) {
  for (uint32_t i = 0; i < 2 * (p - rank - 1); ++i)
    forward(l, 0);
  for (uint32_t i = 0; i < rank + 1; ++i) {
    forward(l, 0);
    forward(l, 1);
  }
  for (uint32_t i = 0; i < p - rank - 1; ++i) {
    input(l, 1);
    weight(l);
    forward(l, 1);
  }
}

static void steady(lane *l, uint32_t p, uint32_t rank, uint32_t n) {
  for (uint32_t i = 0; i < n - 2 * p + rank + 1; ++i) {
    if (i == 0 && rank == p - 1) { /* apart: the backward is wanted at once */
      forward(l, 0);
      backward(l, 1);
    } else {
      pair(l, 0);
    }
    pair(l, 1);
  }
  for (uint32_t i = 0; i < p - rank - 1; ++i) {
    backward(l, 1);
    pair(l, 1);
  }
}

/* Backwards alone; from the middle on their W wait until nothing else is left. */
static void cool_down(lane *l, uint32_t p, uint32_t rank) {
  const uint32_t half = (rank + 1) / 2, odd = rank % 2;
  for (uint32_t i = 0; i < rank + 1; ++i) {
    if (i > half || (i == half && odd))
      input(l, 1);
    else
      backward(l, 1);
    if (i >= half)
      input(l, 0);
    else
      backward(l, 0);
  }
  for (uint32_t i = 0; i < p - rank - 1; ++i) {
    weight(l);
    input(l, 0);
  }
  while (l->first < l->end)
    weight(l);
}

static opipe_status lay_out(opipe_instance *self, const opipe_layout_request *request,
                            opipe_layout *io_layout, opipe_error *err) {
  (void)self;
  return opipe_layout_chunks(request, io_layout, 2, OPIPE_PLACE_V, "dualpipev", err);
}

static opipe_status plan(opipe_instance *self, const opipe_schedule_problem *problem,
                         opipe_emit_fn emit, void *emit_ctx, opipe_error *err) {
  const uint32_t p = problem->layout->n_ranks, m = problem->n_microbatches;
  if (problem->mode == OPIPE_MODE_FORWARD)
    return opipe_emit_forwards_v(problem, emit, emit_ctx, err);
  opipe_work work = {self->host, NULL};
  cell *weights = (cell *)opipe_work_array(&work, 4 * (uint64_t)p, sizeof *weights);
  opipe_status status = weights != NULL
                            ? OPIPE_OK
                            : opipe_fail(err, OPIPE_E_NOMEM, "schedule 'dualpipev': no memory");
  for (uint32_t rank = 0; rank < p && status >= 0; ++rank) {
    lane l = {.problem = problem,
              .emit = emit,
              .emit_ctx = emit_ctx,
              .err = err,
              .stage = {rank, 2 * p - 1 - rank},
              .weights = weights};
    warm_up(&l, p, rank);
    steady(&l, p, rank, m > 2 * p ? m : 2 * p);
    cool_down(&l, p, rank);
    status = l.status;
  }
  opipe_work_end(&work);
  return status;
}

OPIPE_SCHEDULE_TABLE_PLAIN(table, lay_out, plan);
OPIPE_SCHEDULE_CELLS(table_cells, plan); /* PyTorch's table has no idle cells */

OPIPE_SCHEDULE_PLUGIN_CELLS(
    "dualpipev", OPIPE_VERSION, "Apache-2.0",
    "two stages per rank in a V, forwards paired with backwards (DualPipeV)", table, table_cells);
