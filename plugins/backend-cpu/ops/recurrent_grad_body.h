/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of recurrent layers in one type; see recurrent_gates_body.h, which is included before.
 *
 * The states h are the forward's output Y, so that what the gates took is made again by one product
 * over all steps; only an LSTM's c runs through the steps once more. Then the steps backwards:
 * gradients of the gates, and by R of the state before.
 */

typedef struct REC(back) {
  const cpu_call *call;
  const cpu_rec_plan *plan;
  const cpu_tensor *lens;
  const REAL *g, *extra, *dy;
  REAL *before;       /* [S,B,H] h before each step */
  REAL *c;            /* LSTM: [S,B,H] c before each step */
  REAL *u;            /* GRU: [S,B,H] r h, or h R^T + extra of the last gate */
  REAL *x, *v;        /* [S,B,N*H] what the gates took and gave */
  REAL *d;            /* [S,B,N*H] dG */
  REAL *du;           /* GRU, reset behind the product: [S,B,H] gradient of u */
  REAL *dh, *dc, *dq; /* [B,H] */
  REAL *da;           /* [B,N*H] gradients by which R is multiplied, rows of this step */
  REAL *dextra;       /* [B,3H] */
  int64_t i;
  int pass;
} REC(back);

/* The place of row b's step i; -1 where it has ended. */
static int64_t REC(place)(const REC(back) * r, int64_t i, int64_t b) {
  const int64_t length = cpu_rec_length(r->lens, r->plan, b);
  return i < length ? cpu_rec_step(r->plan, i, length) * r->plan->batch + b : -1;
}

/* d[i] *= f'(x[i]), y = f(x) given; limit > 0: 0 where x was clipped. */
static void REC(slope)(const cpu_gate *f, REAL limit, int64_t n, const REAL *x, const REAL *y,
                       REAL *d) {
  const REAL a = (REAL)f->alpha;
  const REAL b = (REAL)f->beta;
  for (int64_t i = 0; i < n; ++i) {
    REAL s = 0;
    switch (f->kind) {
      case CPU_GATE_SIGMOID:
        s = y[i] * (1 - y[i]);
        break;
      case CPU_GATE_TANH:
        s = 1 - y[i] * y[i];
        break;
      case CPU_GATE_RELU:
        s = x[i] > 0 ? 1 : 0;
        break;
      case CPU_GATE_AFFINE:
        s = a;
        break;
      case CPU_GATE_LEAKY_RELU:
        s = x[i] < 0 ? a : 1;
        break;
      case CPU_GATE_THRESHOLDED_RELU:
        s = x[i] > a ? 1 : 0;
        break;
      case CPU_GATE_SCALED_TANH: {
        const REAL t = (REAL)tanh((double)(b * x[i]));
        s = a * b * (1 - t * t);
        break;
      }
      case CPU_GATE_HARD_SIGMOID:
        s = y[i] > 0 && y[i] < 1 ? a : 0;
        break;
      case CPU_GATE_ELU:
        s = x[i] < 0 ? y[i] + a : 1;
        break;
      case CPU_GATE_SOFTSIGN: {
        const REAL t = 1 + (x[i] < 0 ? -x[i] : x[i]);
        s = 1 / (t * t);
        break;
      }
      default:
        s = (REAL)(1 / (1 + exp(-(double)x[i])));
        break;
    }
    d[i] = limit > 0 && (x[i] > limit || x[i] < -limit) ? 0 : d[i] * s;
  }
}

/* -- forwards again ---------------------------------------------------------------------------- */

static void REC(states_before)(const REC(back) * r, const REAL *h0, const REAL *y) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  memset(r->before, 0, (size_t)(plan->steps * plan->batch * n) * sizeof *y);
  for (int64_t b = 0; b < plan->batch; ++b) {
    for (int64_t i = 0; i < plan->steps; ++i) {
      const int64_t at = REC(place)(r, i, b);
      const REAL *from = i == 0 ? h0 + b * n : y + REC(place)(r, i - 1, b) * n;
      if (at >= 0 && (i > 0 || h0 != NULL))
        memcpy(r->before + at * n, from, (size_t)n * sizeof *y);
    }
  }
}

static void REC(lstm_again)(const REC(back) * r, const cpu_exec *alone, int64_t at, REAL *c) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  REAL *x = r->x + at * 4 * n, *v = r->v + at * 4 * n;
  memcpy(r->c + at * n, c, (size_t)n * sizeof *c);
  for (int64_t k = 0; r->extra != NULL && k < n; ++k) {
    x[k] += r->extra[k] * c[k];
    x[2 * n + k] += r->extra[2 * n + k] * c[k];
  }
  memcpy(v, x, (size_t)(4 * n) * sizeof *v);
  REC(gate)(plan, 0, alone, n, v);
  REC(gate)(plan, 0, alone, n, v + 2 * n);
  REC(gate)(plan, 1, alone, n, v + 3 * n);
  for (int64_t k = 0; k < n; ++k) {
    const REAL keep = plan->input_forget ? 1 - v[k] : v[2 * n + k];
    c[k] = keep * c[k] + v[k] * v[3 * n + k];
    if (r->extra != NULL)
      x[n + k] += r->extra[n + k] * c[k];
    v[n + k] = x[n + k];
  }
  REC(gate)(plan, 0, alone, n, v + n);
}

/* All of a GRU's or RNN's gates that are known before (pass 0) and behind (1) the product of r h.
 */
static void REC(others_again)(const REC(back) * r, const cpu_exec *alone, int64_t at) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  REAL *x = r->x + at * plan->gates * n, *v = r->v + at * plan->gates * n;
  const REAL *h = r->before + at * n;
  REAL *u = r->u + at * n;
  if (plan->cell == CPU_CELL_RNN) {
    memcpy(v, x, (size_t)n * sizeof *v);
    REC(gate)(plan, 0, alone, n, v);
    return;
  }
  if (r->pass == 0) {
    memcpy(v, x, (size_t)(2 * n) * sizeof *v);
    REC(gate)(plan, 0, alone, 2 * n, v);
    for (int64_t k = 0; k < n && !plan->linear_before_reset; ++k)
      u[k] = v[n + k] * h[k];
    if (!plan->linear_before_reset)
      return;
  }
  for (int64_t k = 0; k < n && plan->linear_before_reset; ++k) {
    u[k] += r->extra != NULL ? r->extra[k] : 0;
    x[2 * n + k] = r->g[at * 3 * n + 2 * n + k] + v[n + k] * u[k];
  }
  memcpy(v + 2 * n, x + 2 * n, (size_t)n * sizeof *v);
  REC(gate)(plan, 1, alone, n, v + 2 * n);
}

/* Rows of the batch, all their steps; an LSTM's c begins in dc. */
static void REC(again_rows)(void *ctx, int64_t begin, int64_t end) {
  const REC(back) *r = ctx;
  const cpu_exec alone = cpu_alone(r->call->exec);
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t i = 0; i < r->plan->steps; ++i) {
      const int64_t at = REC(place)(r, i, b);
      if (at >= 0 && r->plan->cell == CPU_CELL_LSTM)
        REC(lstm_again)(r, &alone, at, r->dc + b * r->plan->hidden);
      else if (at >= 0)
        REC(others_again)(r, &alone, at);
    }
  }
}

/* x of a block's gates = G + h R^T over all steps at once; or u = h R^T. */
static void REC(again_block)(const REC(back) * r, uint32_t block, const REAL *h,
                             void *const *packed, bool to_u) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden, stride = plan->gates * n;
  const int64_t column = plan->block[block].first * n;
  const REC(factors) f = {.m = plan->steps * plan->batch,
                          .k = n,
                          .n = plan->block[block].n * n,
                          .a = h,
                          .a_stride = n,
                          .packed = packed[block],
                          .plus = to_u ? NULL : r->g + column,
                          .plus_stride = stride,
                          .c = to_u ? r->u : r->x + column,
                          .c_stride = to_u ? n : stride};
  REC(product)(r->call->exec, &f);
}

static void REC(again)(REC(back) * r, void *const *packed) {
  const cpu_rec_plan *plan = r->plan;
  const bool gru = plan->cell == CPU_CELL_GRU;
  if (gru && !plan->linear_before_reset) /* rows that have ended are multiplied, too */
    memset(r->u, 0, (size_t)(plan->steps * plan->batch * plan->hidden) * sizeof *r->u);
  REC(again_block)(r, 0, r->before, packed, false);
  if (gru && plan->linear_before_reset)
    REC(again_block)(r, 1, r->before, packed, true);
  r->pass = 0;
  REC(rows)(r->call, plan, REC(again_rows), r);
  if (gru && !plan->linear_before_reset) {
    REC(again_block)(r, 1, r->u, packed, false);
    r->pass = 1;
    REC(rows)(r->call, plan, REC(again_rows), r);
  }
}

/* -- backwards --------------------------------------------------------------------------------- */

static void REC(slope_of)(const REC(back) * r, int f, int64_t n, const REAL *x, const REAL *y,
                          REAL *d) {
  REC(slope)(&r->plan->gate[f], (REAL)r->plan->clip, n, x, y, d);
}

/* One row: dh, dc of the state behind to d of the gates and dc of the state before. */
static void REC(lstm_back)(const REC(back) * r, const cpu_exec *alone, int64_t at, int64_t b,
                           REAL *dh, REAL *dc) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  const REAL *x = r->x + at * 4 * n, *v = r->v + at * 4 * n, *c = r->c + at * n;
  REAL *d = r->d + at * 4 * n, *own = r->da + b * 4 * n, *p = r->dextra + b * 3 * n;
  REAL *now = own, *shown = own + n; /* c behind, h(c) */
  for (int64_t k = 0; k < n; ++k) {
    const REAL keep = plan->input_forget ? 1 - v[k] : v[2 * n + k];
    now[k] = shown[k] = keep * c[k] + v[k] * v[3 * n + k];
  }
  REC(activate)(&plan->gate[2], alone, n, shown);
  for (int64_t k = 0; k < n; ++k) {
    d[n + k] = dh[k] * shown[k];
    dh[k] *= v[n + k];
  }
  REC(slope)(&plan->gate[2], 0, n, now, shown, dh);
  REC(slope_of)(r, 0, n, x + n, v + n, d + n);
  for (int64_t k = 0; k < n; ++k) {
    const REAL keep = plan->input_forget ? 1 - v[k] : v[2 * n + k];
    dc[k] += dh[k];
    if (r->extra != NULL) {
      dc[k] += d[n + k] * r->extra[n + k];
      p[n + k] += d[n + k] * now[k];
    }
    d[k] = dc[k] * v[3 * n + k] - (plan->input_forget ? dc[k] * c[k] : 0);
    d[2 * n + k] = plan->input_forget ? 0 : dc[k] * c[k];
    d[3 * n + k] = dc[k] * v[k];
    dc[k] *= keep;
  }
  REC(slope_of)(r, 0, n, x, v, d);
  REC(slope_of)(r, 0, n, x + 2 * n, v + 2 * n, d + 2 * n);
  REC(slope_of)(r, 1, n, x + 3 * n, v + 3 * n, d + 3 * n);
  for (int64_t k = 0; r->extra != NULL && k < n; ++k) {
    dc[k] += d[k] * r->extra[k] + d[2 * n + k] * r->extra[2 * n + k];
    p[k] += d[k] * c[k];
    p[2 * n + k] += d[2 * n + k] * c[k];
  }
  memcpy(own, d, (size_t)(4 * n) * sizeof *d);
  memset(dh, 0, (size_t)n * sizeof *dh);
}

/* GRU: dh of the state behind to d of the last gate, and what reaches the state before directly. */
static void REC(gru_back)(const REC(back) * r, int64_t at, int64_t b, REAL *dh) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  const REAL *x = r->x + at * 3 * n, *v = r->v + at * 3 * n, *h = r->before + at * n;
  REAL *d = r->d + at * 3 * n, *own = r->da + b * 3 * n;
  for (int64_t k = 0; k < n; ++k) {
    d[k] = dh[k] * (h[k] - v[2 * n + k]);
    d[2 * n + k] = dh[k] * (1 - v[k]);
    dh[k] *= v[k];
  }
  REC(slope_of)(r, 1, n, x + 2 * n, v + 2 * n, d + 2 * n);
  for (int64_t k = 0; k < n; ++k)
    own[2 * n + k] = d[2 * n + k] * (plan->linear_before_reset ? v[n + k] : 1);
}

/* GRU: the gates in front, once the gradient dq of r h is there (or of u, when it is linear). */
static void REC(gru_gates_back)(const REC(back) * r, int64_t at, int64_t b, const REAL *dq,
                                REAL *dh) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  const REAL *x = r->x + at * 3 * n, *v = r->v + at * 3 * n, *h = r->before + at * n;
  REAL *d = r->d + at * 3 * n, *own = r->da + b * 3 * n;
  for (int64_t k = 0; k < n; ++k) {
    if (plan->linear_before_reset) {
      d[n + k] = d[2 * n + k] * r->u[at * n + k];
      r->du[at * n + k] = own[2 * n + k];
    } else {
      d[n + k] = dq[k] * h[k];
      dh[k] += dq[k] * v[n + k];
    }
  }
  for (int64_t k = 0; k < n && r->dextra != NULL && plan->linear_before_reset; ++k)
    r->dextra[b * 3 * n + k] += own[2 * n + k];
  REC(slope_of)(r, 0, 2 * n, x, v, d);
  memcpy(own, d, (size_t)(2 * n) * sizeof *d);
}

static void REC(back_rows)(void *ctx, int64_t begin, int64_t end) {
  const REC(back) *r = ctx;
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  const cpu_exec alone = cpu_alone(r->call->exec);
  for (int64_t b = begin; b < end; ++b) {
    const int64_t at = REC(place)(r, r->i, b);
    REAL *dh = r->dh + b * n;
    if (at < 0) { /* the product with R gives nothing */
      memset(r->da + b * plan->gates * n, 0, (size_t)(plan->gates * n) * sizeof *dh);
      continue;
    }
    for (int64_t k = 0; k < n && r->pass == 0 && r->dy != NULL; ++k)
      dh[k] += r->dy[at * n + k];
    if (plan->cell == CPU_CELL_LSTM) {
      REC(lstm_back)(r, &alone, at, b, dh, r->dc + b * n);
    } else if (plan->cell == CPU_CELL_RNN) {
      REAL *d = r->d + at * n;
      memcpy(d, dh, (size_t)n * sizeof *d);
      REC(slope_of)(r, 0, n, r->x + at * n, r->v + at * n, d);
      memcpy(r->da + b * n, d, (size_t)n * sizeof *d);
      memset(dh, 0, (size_t)n * sizeof *dh);
    } else {
      if (r->pass == 0)
        REC(gru_back)(r, at, b, dh);
      if (r->pass == 1 || plan->linear_before_reset)
        REC(gru_gates_back)(r, at, b, r->dq + b * n, dh);
    }
  }
}

/* dq = gradients of a block's gates times R; dh += dq. */
static void REC(back_block)(const REC(back) * r, uint32_t block, void *const *packed, bool add) {
  const cpu_rec_plan *plan = r->plan;
  const int64_t n = plan->hidden;
  const REC(factors) f = {.m = plan->batch,
                          .k = plan->block[block].n * n,
                          .n = n,
                          .a = r->da + plan->block[block].first * n,
                          .a_stride = plan->gates * n,
                          .packed = packed[block],
                          .c = r->dq,
                          .c_stride = n};
  REC(product)(r->call->exec, &f);
  for (int64_t k = 0; add && k < plan->batch * n; ++k)
    r->dh[k] += r->dq[k];
}

static void REC(back_step)(REC(back) * r, void *const *packed) {
  const cpu_rec_plan *plan = r->plan;
  const bool gru = plan->cell == CPU_CELL_GRU;
  r->pass = 0;
  REC(rows)(r->call, plan, REC(back_rows), r);
  if (gru && !plan->linear_before_reset) {
    REC(back_block)(r, 1, packed, false);
    r->pass = 1;
    REC(rows)(r->call, plan, REC(back_rows), r);
  }
  REC(back_block)(r, 0, packed, true);
  if (gru && plan->linear_before_reset)
    REC(back_block)(r, 1, packed, true);
}

/* -- the whole --------------------------------------------------------------------------------- */

/* Divides the workspace; with base NULL it is measured alone. */
static void *REC(take)(char *base, uint64_t *io_at, uint64_t n_bytes) {
  const uint64_t here = *io_at;
  *io_at += cpu_align_up(n_bytes, CPU_ALIGN_BYTES);
  return base != NULL ? base + here : NULL;
}

/* out: results that the call wants stand where they go. */
static uint64_t REC(lay_out)(REC(back) * r, void *const *out, char *base, void **packed,
                             void **turned) {
  const cpu_rec_plan *plan = r->plan;
  const bool gru = plan->cell == CPU_CELL_GRU, linear = gru && plan->linear_before_reset;
  const uint64_t bh = (uint64_t)(plan->batch * plan->hidden) * sizeof(REAL);
  const uint64_t sbh = bh * (uint64_t)plan->steps, gates = (uint64_t)plan->gates;
  uint64_t at = 0;
  for (uint32_t i = 0; i < plan->n_blocks; ++i) {
    const int64_t n = plan->block[i].n * plan->hidden;
    packed[i] = REC(take)(base, &at, REC(packed_bytes)(plan->hidden, n));
    turned[i] = REC(take)(base, &at, REC(packed_bytes)(n, plan->hidden));
  }
  r->x = REC(take)(base, &at, sbh * gates);
  r->v = REC(take)(base, &at, sbh * gates);
  r->c = REC(take)(base, &at, plan->cell == CPU_CELL_LSTM ? sbh : 0);
  r->dh = REC(take)(base, &at, bh);
  r->dc = REC(take)(base, &at, bh);
  r->dq = REC(take)(base, &at, bh);
  r->da = REC(take)(base, &at, bh * gates);
  r->dextra = REC(take)(base, &at, 3 * bh);
  r->d = out[0] != NULL ? out[0] : REC(take)(base, &at, sbh * gates);
  r->before = out[1] != NULL ? out[1] : REC(take)(base, &at, sbh);
  r->du = linear && out[2] != NULL ? out[2] : REC(take)(base, &at, linear ? sbh : 0);
  r->u = gru && !linear && out[2] != NULL ? out[2] : REC(take)(base, &at, gru ? sbh : 0);
  return at;
}

static uint64_t REC(backward_bytes)(const cpu_rec_plan *plan) {
  void *const none[3] = {NULL, NULL, NULL};
  void *packed[2], *turned[2];
  REC(back) r = {.plan = plan};
  return REC(lay_out)(&r, none, NULL, packed, turned);
}

/* Sums of the rows' parts, in rising order of rows. */
static void REC(sum_extra)(const REC(back) * r, int64_t n, REAL *out) {
  for (int64_t k = 0; k < n; ++k) {
    REAL sum = 0;
    for (int64_t b = 0; b < r->plan->batch; ++b)
      sum += r->dextra[b * 3 * r->plan->hidden + k];
    out[k] = sum;
  }
}

static opipe_status REC(backward)(const cpu_call *call, opipe_error *err) {
  const cpu_rec_plan *plan = call->plan;
  const int64_t bh = plan->batch * plan->hidden, sbh = plan->steps * bh;
  void *const out[3] = {cpu_rec_out(call, 0)->data, cpu_rec_out(call, 1)->data,
                        cpu_rec_out(call, 2)->data};
  void *packed[2] = {NULL, NULL}, *turned[2] = {NULL, NULL};
  REC(back) r = {.call = call, .plan = plan, .lens = cpu_rec_in(call, CPU_REC_GRAD_LENS)};
  CPU_TRY(cpu_rec_check_lens(call, r.lens, plan, err));
  r.g = call->in[CPU_REC_G].data;
  r.extra = cpu_rec_in(call, CPU_REC_GRAD_EXTRA)->data;
  r.dy = cpu_rec_in(call, CPU_REC_GRAD_DY)->data;
  (void)REC(lay_out)(&r, out, call->workspace, packed, turned);
  REC(pack_blocks)(call, plan, call->in[CPU_REC_R].data, false, packed);
  REC(pack_blocks)(call, plan, call->in[CPU_REC_R].data, true, turned);
  REC(states_before)(&r, cpu_rec_in(call, CPU_REC_GRAD_H0)->data, call->in[CPU_REC_GRAD_Y].data);
  REC(begin_state)(cpu_rec_in(call, CPU_REC_GRAD_C0), bh, r.dc);
  REC(again)(&r, packed);
  memset(r.d, 0, (size_t)(sbh * plan->gates) * sizeof(REAL));
  memset(r.dextra, 0, (size_t)(3 * bh) * sizeof(REAL));
  if (plan->cell == CPU_CELL_GRU && plan->linear_before_reset)
    memset(r.du, 0, (size_t)sbh * sizeof(REAL));
  REC(begin_state)(cpu_rec_in(call, CPU_REC_GRAD_DYH), bh, r.dh);
  REC(begin_state)(cpu_rec_in(call, CPU_REC_GRAD_DYC), bh, r.dc);
  for (r.i = plan->steps; r.i-- > 0;)
    REC(back_step)(&r, turned);
  if (cpu_rec_out(call, 3)->data != NULL)
    memcpy(call->out[3].data, r.dh, (size_t)bh * sizeof(REAL));
  if (cpu_rec_out(call, 4)->data != NULL)
    memcpy(call->out[4].data, r.dc, (size_t)bh * sizeof(REAL));
  if (cpu_rec_out(call, 5)->data != NULL)
    REC(sum_extra)(&r, (int64_t)call->out[5].n, call->out[5].data);
  return OPIPE_OK;
}
