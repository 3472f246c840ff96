/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of recurrent layers in either direction, in one type: REAL is float or double, REC(name)
 * gives names of that type. Included twice by recurrent.c and by recurrent_grad.c, through
 * recurrent_f32_body.h and recurrent_f64_body.h, which say how a matrix is packed and multiplied by
 * and how an activation works on a run.
 */

/* -- sums and activations ---------------------------------------------------------------------- */

static void REC(clip)(const cpu_rec_plan *plan, int64_t n, REAL *x) {
  const REAL limit = (REAL)plan->clip;
  for (int64_t i = 0; limit > 0 && i < n; ++i)
    x[i] = x[i] < -limit ? -limit : x[i] > limit ? limit : x[i];
}

/* x[i] = f(x[i]), clipped before. */
static void REC(gate)(const cpu_rec_plan *plan, int f, const cpu_exec *alone, int64_t n, REAL *x) {
  REC(clip)(plan, n, x);
  REC(activate)(&plan->gate[f], alone, n, x);
}

/* Blocks of R, packed; as they stand ([H, n H], forwards) or turned ([n H, H], backwards). */
static void REC(pack_blocks)(const cpu_call *call, const cpu_rec_plan *plan, const REAL *r,
                             bool turned, void *const *packed) {
  const int64_t h = plan->hidden;
  for (uint32_t i = 0; i < plan->n_blocks; ++i) {
    const REAL *from = r + plan->block[i].first * h * h;
    const int64_t n = plan->block[i].n * h;
    if (turned)
      REC(pack)(call->exec, from, n, h, h, 1, packed[i]);
    else
      REC(pack)(call->exec, from, h, n, 1, h, packed[i]);
  }
}

/* Rows of the batch in parallel: body(ctx, begin, end). */
static void REC(rows)(const cpu_call *call, const cpu_rec_plan *plan, cpu_range_body body,
                      void *ctx) {
  cpu_parallel(call->exec, plan->batch, plan->batch * plan->hidden * plan->gates * 16, body, ctx);
}

static void REC(begin_state)(const cpu_tensor *first, int64_t n, REAL *state) {
  if (first->data != NULL)
    memcpy(state, first->data, (size_t)n * sizeof *state);
  else
    memset(state, 0, (size_t)n * sizeof *state);
}
