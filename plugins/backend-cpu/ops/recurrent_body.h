/* SPDX-License-Identifier: Apache-2.0 */
/* Recurrent layers forwards in one type; see recurrent_gates_body.h, which is included before.
 */

typedef struct REC(run) {
  const cpu_call *call;
  const cpu_rec_plan *plan;
  const cpu_tensor *lens;
  const REAL *g, *extra;
  const REAL *from; /* [B,N*H] what this step gets from the input */
  REAL *x;          /* the same, gathered where rows are of several lengths */
  REAL *y;
  REAL *h, *c; /* [B,H] the state */
  REAL *a;     /* [B,N*H] what the gates take, then give */
  REAL *u;     /* [B,H] of a GRU: h R^T of the last gate, or r h */
  int64_t i;   /* how many steps came before */
  int pass;    /* of a GRU that resets before the product: 0 up to it, 1 behind */
} REC(run);

static void REC(lstm_row)(const REC(run) * r, const cpu_exec *alone, REAL *a, REAL *c, REAL *h) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  REAL *in = a, *out = a + n, *forget = a + 2 * n, *cell = a + 3 * n;
  for (int64_t k = 0; r->extra != NULL && k < n; ++k) {
    in[k] += r->extra[k] * c[k];
    forget[k] += r->extra[2 * n + k] * c[k];
  }
  REC(gate)(plan, 0, alone, n, in);
  REC(gate)(plan, 0, alone, n, forget);
  REC(gate)(plan, 1, alone, n, cell);
  for (int64_t k = 0; k < n; ++k) {
    const REAL keep = plan->input_forget ? 1 - in[k] : forget[k];
    c[k] = keep * c[k] + in[k] * cell[k];
    h[k] = c[k];
    if (r->extra != NULL)
      out[k] += r->extra[n + k] * c[k];
  }
  REC(gate)(plan, 0, alone, n, out);
  REC(activate)(&plan->gate[2], alone, n, h);
  for (int64_t k = 0; k < n; ++k)
    h[k] = out[k] * h[k];
}

/* The part of a GRU's row in front of the product of r h, or all that is not behind one. */
static void REC(gru_reset)(const REC(run) * r, const cpu_exec *alone, const REAL *from, REAL *a,
                           const REAL *h, REAL *u) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  REC(gate)(plan, 0, alone, 2 * n, a);
  for (int64_t k = 0; k < n; ++k) {
    if (plan->linear_before_reset)
      a[2 * n + k] = from[2 * n + k] + a[n + k] * (u[k] + (r->extra != NULL ? r->extra[k] : 0));
    else
      u[k] = a[n + k] * h[k];
  }
}

static void REC(gru_row)(const REC(run) * r, const cpu_exec *alone, REAL *a, REAL *h) {
  const int64_t n = r->plan->hidden;
  REAL *z = a, *fresh = a + 2 * n;
  REC(gate)(r->plan, 1, alone, n, fresh);
  for (int64_t k = 0; k < n; ++k)
    h[k] = (1 - z[k]) * fresh[k] + z[k] * h[k];
}

static void REC(step_rows)(void *ctx, int64_t begin, int64_t end) {
  const REC(run) *r = ctx;
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  const cpu_exec alone = cpu_alone(r->call->exec);
  for (int64_t b = begin; b < end; ++b) {
    REAL *a = r->a + b * plan->gates * n, *h = r->h + b * n, *u = r->u + b * n;
    const int64_t length = cpu_rec_length(r->lens, plan, b);
    if (r->i >= length) {
      if (plan->cell == CPU_CELL_GRU && !plan->linear_before_reset && r->pass == 0)
        memset(u, 0, (size_t)n * sizeof *u);
      continue;
    }
    if (plan->cell == CPU_CELL_GRU && r->pass == 0) {
      REC(gru_reset)(r, &alone, r->from + b * plan->gates * n, a, h, u);
      if (!plan->linear_before_reset)
        continue;
    }
    if (plan->cell == CPU_CELL_LSTM) {
      REC(lstm_row)(r, &alone, a, r->c + b * n, h);
    } else if (plan->cell == CPU_CELL_GRU) {
      REC(gru_row)(r, &alone, a, h);
    } else {
      memcpy(h, a, (size_t)n * sizeof *h);
      REC(gate)(plan, 0, &alone, n, h);
    }
    if (r->y != NULL) {
      const int64_t t = cpu_rec_step(plan, r->i, length);
      memcpy(r->y + (t * plan->batch + b) * n, h, (size_t)n * sizeof *h);
    }
  }
}

/* The part of every row's step i that comes from the input. With reading backwards, rows of several
 * lengths are at several steps. */
static void REC(input_rows)(REC(run) * r) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->gates * plan->hidden;
  if (r->lens->data == NULL) {
    r->from = r->g + cpu_rec_step(plan, r->i, plan->steps) * plan->batch * n;
    return;
  }
  for (int64_t b = 0; b < plan->batch; ++b) {
    const int64_t length = cpu_rec_length(r->lens, plan, b);
    const int64_t t = cpu_rec_step(plan, r->i, length);
    if (r->i < length)
      memcpy(r->x + b * n, r->g + (t * plan->batch + b) * n, (size_t)n * sizeof *r->x);
    else
      memset(r->x + b * n, 0, (size_t)n * sizeof *r->x);
  }
  r->from = r->x;
}

/* a of a block's gates = what comes from the input + x R^T; or u = x R^T. */
static void REC(add_block)(const REC(run) * r, uint32_t block, const REAL *x, void *const *packed,
                           bool to_u) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t h = plan->hidden;
  const int64_t column = plan->block[block].first * h;
  const int64_t stride = plan->gates * h;
  const REC(factors) f = {.m = plan->batch,
                          .k = h,
                          .n = plan->block[block].n * h,
                          .a = x,
                          .a_stride = h,
                          .packed = packed[block],
                          .plus = to_u ? NULL : r->from + column,
                          .plus_stride = stride,
                          .c = to_u ? r->u : r->a + column,
                          .c_stride = to_u ? h : stride};
  REC(product)(r->call->exec, &f);
}

static void REC(step)(REC(run) * r, void *const *packed) {
  const cpu_rec_plan *plan = r->plan;
  REC(input_rows)(r);
  r->pass = 0;
  REC(add_block)(r, 0, r->h, packed, false);
  if (plan->cell == CPU_CELL_GRU && plan->linear_before_reset)
    REC(add_block)(r, 1, r->h, packed, true);
  REC(rows)(r->call, plan, REC(step_rows), r);
  if (plan->cell == CPU_CELL_GRU && !plan->linear_before_reset) {
    REC(add_block)(r, 1, r->u, packed, false);
    r->pass = 1;
    REC(rows)(r->call, plan, REC(step_rows), r);
  }
}

/* Workspace of a run, part after part. */
static uint64_t REC(forward_bytes)(const cpu_rec_plan *plan) {
  const uint64_t bh = (uint64_t)(plan->batch * plan->hidden);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan->n_blocks; ++i)
    bytes += REC(packed_bytes)(plan->hidden, plan->block[i].n * plan->hidden);
  return bytes + cpu_align_up(bh * (uint64_t)(3 + 2 * plan->gates) * sizeof(REAL), CPU_ALIGN_BYTES);
}

static opipe_status REC(forward)(const cpu_call *call, opipe_error *err) {
  const cpu_rec_plan *plan = call->plan;
  const cpu_tensor *lens = cpu_rec_in(call, CPU_REC_LENS);
  const int64_t bh = plan->batch * plan->hidden;
  char *at = call->workspace;
  void *packed[2] = {NULL, NULL};
  CPU_TRY(cpu_rec_check_lens(call, lens, plan, err));
  for (uint32_t i = 0; i < plan->n_blocks; ++i) {
    packed[i] = at;
    at += REC(packed_bytes)(plan->hidden, plan->block[i].n * plan->hidden);
  }
  REAL *room = (REAL *)(void *)at;
  REC(run) r = {.call = call, .plan = plan, .lens = lens};
  r.g = call->in[CPU_REC_G].data;
  r.extra = cpu_rec_in(call, CPU_REC_EXTRA)->data;
  r.y = call->out[0].data;
  r.h = room;
  r.c = room + bh;
  r.u = room + 2 * bh;
  r.a = room + 3 * bh;
  r.x = r.a + plan->gates * bh;
  REC(pack_blocks)(call, plan, call->in[CPU_REC_R].data, false, packed);
  REC(begin_state)(cpu_rec_in(call, CPU_REC_H0), bh, r.h);
  REC(begin_state)(cpu_rec_in(call, CPU_REC_C0), bh, r.c);
  if (r.y != NULL && lens->data != NULL)
    memset(r.y, 0, call->out[0].n * sizeof *r.y);
  for (r.i = 0; r.i < plan->steps; ++r.i)
    REC(step)(&r, packed);
  if (cpu_rec_out(call, 1)->data != NULL)
    memcpy(call->out[1].data, r.h, (size_t)bh * sizeof *r.h);
  if (cpu_rec_out(call, 2)->data != NULL)
    memcpy(call->out[2].data, r.c, (size_t)bh * sizeof *r.c);
  return OPIPE_OK;
}
