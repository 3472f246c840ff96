/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.Dropout: a mask from counters that no split of the work changes.
 *
 * Inputs X, seed, step, sample, token (int64 scalars). Element i is kept when a hash of (seed,
 * step, key, global sample, global token, place in the rest) is at least `ratio`, and divided by 1
 * - ratio. The batch axis holds outer * N * inner elements, n of N counts samples from `sample` on;
 * the token axis likewise. "The rest" is what is left of the row-major position without n of both.
 *
 * Version 2: X is a part of a tensor along `part_axis`, with `part_whole` entries there, of which X
 * has the runs part_runs = [first, n, first, n ...]. Each element is kept as in the whole tensor.
 * The batch or the token axis may be the same one; its N is then that of the whole tensor.
 */
#include "loop.h"

typedef struct factor {
  int32_t axis; /* -1: none */
  int64_t n, inner;
} factor;

typedef struct dropout_plan {
  uint64_t key;
  double ratio;
  factor batch, token;
  int32_t part_axis; /* -1: X is whole */
  int64_t part_whole;
  const int64_t *part_runs; /* [2 * n_runs] */
  uint32_t n_runs;
  uint32_t rank;
  int64_t shape[OPIPE_MAX_RANK];
} dropout_plan;

#define GOLDEN UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mix(uint64_t x) {
  x ^= x >> 30;
  x *= UINT64_C(0xbf58476d1ce4e5b9);
  x ^= x >> 27;
  x *= UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

/* Takes the special factor out of index i of its axis: *out_n is it, the result the rest. */
static int64_t take(const factor *f, int64_t i, int64_t *out_n) {
  *out_n = i / f->inner % f->n;
  return i / (f->inner * f->n) * f->inner + i % f->inner;
}

/* The same where both lie in one axis: the one with the larger stride first. */
static int64_t take_both(const dropout_plan *plan, int64_t i, int64_t *out_sample,
                         int64_t *out_token) {
  const bool batch_first = plan->batch.inner >= plan->token.inner;
  const factor *high = batch_first ? &plan->batch : &plan->token;
  const factor *low = batch_first ? &plan->token : &plan->batch;
  *out_sample = i / plan->batch.inner % plan->batch.n;
  *out_token = i / plan->token.inner % plan->token.n;
  const int64_t above = i / (high->inner * high->n);
  const int64_t middle = i % high->inner / (low->inner * low->n);
  const int64_t n_middle = high->inner / (low->inner * low->n);
  return (above * n_middle + middle) * low->inner + i % low->inner;
}

/* Sample and token of the row that holds elements [row * columns, ...), and the place of its first
 * element in the rest; the last axis is special only in the general case. */
typedef struct place {
  int64_t sample, token, rest;
} place;

/* Index i of the part's axis as one of the whole tensor's. */
static int64_t whole_index(const dropout_plan *plan, int64_t i) {
  uint32_t r = 0;
  for (; r + 1 < plan->n_runs && i >= plan->part_runs[2 * r + 1]; ++r)
    i -= plan->part_runs[2 * r + 1];
  return plan->part_runs[2 * r] + i;
}

static place place_of(const dropout_plan *plan, int64_t i) {
  int64_t index[OPIPE_MAX_RANK];
  place at = {0, 0, 0};
  for (uint32_t a = plan->rank; a > 0; --a) {
    const int64_t extent = plan->shape[a - 1];
    index[a - 1] = i % extent;
    i /= extent;
  }
  for (uint32_t a = 0; a < plan->rank; ++a) {
    const bool is_part = plan->part_axis == (int32_t)a;
    int64_t extent = is_part ? plan->part_whole : plan->shape[a];
    int64_t rest = is_part ? whole_index(plan, index[a]) : index[a];
    const bool is_batch = plan->batch.axis == (int32_t)a;
    const bool is_token = plan->token.axis == (int32_t)a;
    extent /= (is_batch ? plan->batch.n : 1) * (is_token ? plan->token.n : 1);
    if (is_batch && is_token)
      rest = take_both(plan, rest, &at.sample, &at.token);
    else if (is_batch)
      rest = take(&plan->batch, rest, &at.sample);
    else if (is_token)
      rest = take(&plan->token, rest, &at.token);
    at.rest = at.rest * extent + rest;
  }
  return at;
}

typedef struct dropout_job {
  const cpu_call *call;
  uint64_t base;
  int64_t columns; /* of a run within which only the rest counts on */
  double scale;
  uint64_t bound; /* a draw of 53 bits below it drops */
} dropout_job;

static void dropout_rows(void *ctx, int64_t begin, int64_t end) {
  const dropout_job *job = ctx;
  const cpu_call *call = job->call;
  const dropout_plan *plan = call->plan;
  uint8_t *mask = call->n_out > 1 ? call->out[1].data : NULL;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t first = row * job->columns;
    const place at = place_of(plan, first);
    const uint64_t sample = (uint64_t)(cpu_index(&call->in[3], 0) + at.sample);
    const uint64_t token = (uint64_t)(cpu_index(&call->in[4], 0) + at.token);
    const uint64_t key = mix(mix(job->base + sample * GOLDEN) + token * GOLDEN);
    for (int64_t c = 0; c < job->columns; ++c) {
      const uint64_t draw = mix(key + (uint64_t)(at.rest + c + 1) * GOLDEN) >> 11;
      const bool keep = draw >= job->bound;
      if (call->in[0].dtype == OPIPE_DOUBLE) {
        const double x = ((const double *)call->in[0].data)[first + c];
        ((double *)call->out[0].data)[first + c] = keep ? x * job->scale : 0;
      } else {
        const float x = ((const float *)call->in[0].data)[first + c];
        ((float *)call->out[0].data)[first + c] = keep ? x * (float)job->scale : 0;
      }
      if (mask != NULL)
        mask[first + c] = keep;
    }
  }
}

static opipe_status dropout_kernel(const cpu_call *call, opipe_error *err) {
  const dropout_plan *plan = call->plan;
  dropout_job job = {.call = call, .scale = 1.0 / (1.0 - plan->ratio)};
  const int32_t last = (int32_t)plan->rank - 1;
  const uint64_t seed = (uint64_t)cpu_index(&call->in[1], 0);
  const uint64_t step = (uint64_t)cpu_index(&call->in[2], 0);
  (void)err;
  const bool plain = plan->rank > 0 && plan->batch.axis != last && plan->token.axis != last &&
                     (plan->part_axis != last || plan->n_runs == 1);
  job.columns = plain ? plan->shape[last] : 1;
  job.base = mix(mix(plan->key + seed * GOLDEN) + step * GOLDEN);
  job.bound = (uint64_t)(plan->ratio * 0x1p53);
  cpu_parallel(call->exec, (int64_t)call->in[0].n / (job.columns > 0 ? job.columns : 1),
               (int64_t)call->in[0].n * 4, dropout_rows, &job);
  return OPIPE_OK;
}

/* PREFIX_axis, _outer, _inner */
static opipe_status read_factor(cpu_prep *p, const dropout_plan *plan, const char *prefix,
                                factor *out) {
  const opipe_value *x = cpu_in(p, 0);
  char name[32];
  (void)snprintf(name, sizeof name, "%s_axis", prefix);
  const int64_t axis = opipe_attr_int(p->node, name, -1);
  (void)snprintf(name, sizeof name, "%s_outer", prefix);
  const int64_t outer = opipe_attr_int(p->node, name, 1);
  (void)snprintf(name, sizeof name, "%s_inner", prefix);
  const int64_t inner = opipe_attr_int(p->node, name, 1);
  int64_t rest = 0;
  out->axis = -1;
  out->n = 1;
  out->inner = 1;
  if (axis < 0)
    return OPIPE_OK;
  const int64_t extent = axis >= (int64_t)x->rank           ? -1
                         : axis == (int64_t)plan->part_axis ? plan->part_whole
                                                            : x->shape[axis];
  if (extent < 0 || outer < 1 || inner < 1 || __builtin_mul_overflow(outer, inner, &rest) ||
      extent % rest != 0) {
    return cpu_invalid(p, "%s axis %lld of %lld * N * %lld elements does not fit '%.80s'", prefix,
                       (long long)axis, (long long)outer, (long long)inner, x->name);
  }
  out->axis = (int32_t)axis;
  out->inner = inner;
  out->n = extent / rest > 0 ? extent / rest : 1;
  return OPIPE_OK;
}

static opipe_status read_part(cpu_prep *p, dropout_plan *plan) {
  const opipe_value *x = cpu_in(p, 0);
  const opipe_attr *runs = opipe_attr_find(p->node, "part_runs");
  const int64_t axis = opipe_attr_int(p->node, "part_axis", -1);
  int64_t sum = 0, end = 0;
  plan->part_axis = -1;
  if (axis < 0)
    return OPIPE_OK;
  plan->part_whole = opipe_attr_int(p->node, "part_whole", 0);
  bool fits = axis < (int64_t)x->rank && runs != NULL && runs->kind == OPIPE_ATTR_INTS &&
              runs->n >= 2 && runs->n % 2 == 0;
  for (uint32_t r = 0; fits && r < runs->n; r += 2) {
    const int64_t *run = (const int64_t *)runs->data + r;
    fits = run[0] >= end && run[1] >= 0 && run[1] <= plan->part_whole - run[0];
    end = run[0] + run[1];
    sum += run[1];
  }
  if (!fits || sum != x->shape[axis]) {
    return cpu_invalid(p, "the runs of part axis %lld do not fit '%.80s'", (long long)axis,
                       x->name);
  }
  plan->part_axis = (int32_t)axis;
  plan->part_runs = runs->data;
  plan->n_runs = runs->n / 2;
  return OPIPE_OK;
}

static opipe_status prepare_dropout(cpu_prep *p) {
  const opipe_value *x = cpu_in(p, 0);
  dropout_plan *plan = CPU_PLAN(p, dropout_plan);
  if (plan == NULL)
    return cpu_nomem(p);
  plan->ratio = opipe_attr_float(p->node, "ratio", 0.5);
  if (!cpu_is_float(x->dtype) || !(plan->ratio >= 0 && plan->ratio < 1))
    return cpu_refuse(p, "does not take %s with ratio %g", opipe_dtype_name(x->dtype), plan->ratio);
  for (uint32_t i = 1; i < 5; ++i) {
    const opipe_value *scalar = cpu_in(p, i);
    if ((scalar->dtype != OPIPE_INT64 && scalar->dtype != OPIPE_INT32) || cpu_elems(scalar) != 1)
      return cpu_invalid(p, "'%.80s' is not one integer", scalar->name);
  }
  CPU_TRY(cpu_expect_like(p, 0, x));
  CPU_TRY(cpu_out(p, 1) != NULL ? cpu_expect(p, 1, OPIPE_BOOL, x->shape, x->rank) : OPIPE_OK);
  CPU_TRY(read_part(p, plan));
  CPU_TRY(read_factor(p, plan, "batch", &plan->batch));
  CPU_TRY(read_factor(p, plan, "token", &plan->token));
  if (plan->batch.axis >= 0 && plan->batch.axis == plan->token.axis) {
    const factor *high = plan->batch.inner >= plan->token.inner ? &plan->batch : &plan->token;
    const factor *low = high == &plan->batch ? &plan->token : &plan->batch;
    if (high->inner % (low->inner * low->n) != 0)
      return cpu_invalid(p, "batch and token axis overlap in axis %d", plan->batch.axis);
  }
  plan->rank = x->rank;
  for (uint32_t i = 0; i < x->rank; ++i)
    plan->shape[i] = x->shape[i];
  plan->key = mix(GOLDEN);
  for (const char *c = opipe_attr_string(p->node, "key", ""); *c != '\0'; ++c)
    plan->key = mix(plan->key ^ (unsigned char)*c);
  cpu_want_layout(p, 0, CPU_LAYOUT_COPY);
  p->step->inplace = 1;
  p->step->run = dropout_kernel;
  return OPIPE_OK;
}

static const cpu_op ops[] = {
    {"Dropout", "opipe", prepare_dropout, 5, 5, 2, CPU_OP_WIDEN, 0},
};

const cpu_op_family cpu_family_dropout_train = {ops, CPU_COUNT_OF(ops)};
