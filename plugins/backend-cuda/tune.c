/* SPDX-License-Identifier: Apache-2.0 */
/* Measures the algorithms of one product: kernel_tune of backend.h.
 *
 *   memory    [ D | D of the first run | C | A | B | bias | aux | workspace ]   one allocation
 *   a run     D = C (or NaN), start, product, end, D against the first run's
 *
 * Sums over k lie behind D, and are compared with it.
 *
 * It measures exactly what sessions will run: an algorithm that is made anew from its text. Its
 * bits are compared with those of the algorithm that the library named, which its text may not say
 * in full.
 *
 * Operands are random: on zeros a chip draws less power, and so runs faster, than it will.
 */
#include <stdlib.h>

#include "product.h"

enum {
  CANDIDATES = 16,
  CANDIDATES_MOST = 64,
  RUNS = 20,
  RUNS_MOST = 1024,
  PIECE = 1 << 20, /* bytes of random numbers that are made; repeated */
  UNWRITTEN = 0xff /* NaN of every type */
};

typedef struct candidate {
  cuda_lt_choice named, made; /* by the library; from the text */
  bool is_made;               /* else the library refuses what the text says */
  char text[sizeof((opipe_kernel *)0)->choice];
} candidate;

typedef struct tuning {
  opipe_device *device;
  const cuda_product *product;
  candidate candidates[CANDIDATES_MOST];
  uint32_t n_candidates;
  cuda_product_traits traits;
  cuda_bound_product *bound;
  CUdeviceptr memory, d, first, c, workspace;
  uint64_t n_bytes; /* of the memory */
  uint64_t d_bytes, workspace_bytes;
  CUevent start, end;
  CUfunction compare;
  cuda_launch comparison;
  cuda_status *differs; /* pinned */
  uint32_t n_runs;
  double ns[RUNS_MOST];
} tuning;

static opipe_status check(const tuning *t, CUresult result, const char *what, opipe_error *err) {
  return cuda_result(t->device->place, result, what, err);
}

/* ---- operands ---- */

/* Bytes from the first element to the last one. */
static uint64_t span_of(const cuda_product *p, int64_t columns, int64_t distance, int64_t rows,
                        int64_t stride, uint32_t size) {
  const int64_t last = (p->batch - 1) * stride + (columns - 1) * distance + rows;
  return (uint64_t)last * size;
}

/* Numbers in (-1, 1) of a type; fp16 from 2^-7 on. */
static void draw(uint32_t dtype, unsigned char *out, size_t n_bytes) {
  const size_t size = opipe_dtype_bits(dtype) / 8;
  uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
  for (size_t i = 0; i + size <= n_bytes; i += size) {
    state ^= state << 13; /* xorshift64, Marsaglia 2003 */
    state ^= state >> 7;
    state ^= state << 17;
    const double number = (double)(int64_t)state * 0x1p-63;
    const float single = (float)number;
    uint32_t bits = 0;
    memcpy(&bits, &single, sizeof bits);
    const uint16_t half =
        (uint16_t)((bits >> 16 & 0x8000u) | (8u + (uint32_t)(state >> 40) % 7u) << 10 |
                   (uint32_t)(state >> 20 & 0x3ffu));
    const uint16_t brain = (uint16_t)(bits >> 16);
    memcpy(out + i,
           dtype == OPIPE_DOUBLE    ? (const void *)&number
           : dtype == OPIPE_FLOAT   ? (const void *)&single
           : dtype == OPIPE_FLOAT16 ? (const void *)&half
                                    : (const void *)&brain,
           size);
  }
}

/* Queued; `piece` is borrowed until the stream was waited for. */
static opipe_status fill(const tuning *t, CUdeviceptr to, uint64_t n_bytes, uint32_t dtype,
                         unsigned char *piece, opipe_error *err) {
  const cuda_driver *driver = t->device->place->driver;
  draw(dtype, piece, PIECE);
  for (uint64_t at = 0; at < n_bytes; at += PIECE) {
    const uint64_t n = n_bytes - at < PIECE ? n_bytes - at : PIECE;
    CUDA_TRY(check(t, driver->write(to + at, piece, (size_t)n, t->device->control),
                   "operands of a measurement", err));
  }
  return check(t, driver->stream_sync(t->device->control), "operands of a measurement", err);
}

/* An operand keeps what its addresses are multiples of. */
typedef struct operand {
  uint64_t n_bytes, skip;
  uint32_t dtype;
  CUdeviceptr at;
} operand;

static uint64_t sums_bytes(const cuda_product *p) {
  return p->sums == CUDA_SUMS_NOTHING
             ? 0
             : (uint64_t)(p->sums == CUDA_SUMS_A ? p->m : p->n) * sizeof(float);
}

enum { OP_D, OP_FIRST, OP_C, OP_A, OP_B, OP_BIAS, OP_AUX, OP_WORKSPACE, OPERANDS };

static void measure_operands(const tuning *t, operand *ops) {
  const cuda_product *p = t->product;
  const uint32_t size = t->traits.size, d_size = t->traits.d_size;
  const uint64_t d = span_of(p, p->n, p->d_distance, p->m, p->d_stride, d_size);
  const uint64_t d_skip = p->d_offset % CUDA_ALIGN, sums = sums_bytes(p);
  const uint64_t written = sums != 0 ? cuda_align_up(d_skip + d) - d_skip + sums : d;
  ops[OP_D] = ops[OP_FIRST] = ops[OP_C] = (operand){written, d_skip, p->d_dtype, 0};
  ops[OP_A] = (operand){span_of(p, p->trans_a ? p->m : p->k, p->a_distance,
                                p->trans_a ? p->k : p->m, p->a_stride, size),
                        p->a_offset % CUDA_ALIGN, p->dtype, 0};
  ops[OP_B] = (operand){span_of(p, p->trans_b ? p->k : p->n, p->b_distance,
                                p->trans_b ? p->n : p->k, p->b_stride, size),
                        p->b_offset % CUDA_ALIGN, p->dtype, 0};
  ops[OP_BIAS] = (operand){p->has_bias ? (uint64_t)p->m * d_size : 0, p->bias_offset % CUDA_ALIGN,
                           p->d_dtype, 0};
  ops[OP_AUX] = (operand){p->has_aux ? d : 0, d_skip, p->d_dtype, 0};
  ops[OP_WORKSPACE] = (operand){t->workspace_bytes, 0, p->dtype, 0};
  if (p->beta == 0)
    ops[OP_C].n_bytes = 0;
}

static opipe_status make_operands(tuning *t, opipe_error *err) {
  operand ops[OPERANDS];
  unsigned char *piece = NULL;
  opipe_status status = OPIPE_OK;
  const uint64_t sums = sums_bytes(t->product);
  measure_operands(t, ops);
  for (size_t i = 0; i < OPERANDS; ++i) {
    ops[i].at = t->n_bytes + ops[i].skip;
    t->n_bytes += cuda_align_up(ops[i].skip + ops[i].n_bytes);
  }
  CUDA_TRY(cuda_memory_take(t->device, OPIPE_BUFFER_STAGING, "memory for a measurement",
                            &t->n_bytes, &t->memory, err));
  for (size_t i = 0; i < OPERANDS; ++i)
    ops[i].at += t->memory;
  t->d = ops[OP_D].at;
  t->first = ops[OP_FIRST].at;
  t->c = ops[OP_C].n_bytes != 0 ? ops[OP_C].at : 0;
  t->workspace = ops[OP_WORKSPACE].at;
  t->d_bytes = ops[OP_D].n_bytes;
  piece = opipe_zeroed(t->device->host, "random numbers", PIECE, 16, err);
  if (piece == NULL)
    return OPIPE_E_NOMEM;
  for (size_t i = OP_C; status >= 0 && i <= OP_AUX; ++i)
    status = fill(t, ops[i].at, ops[i].n_bytes, ops[i].dtype, piece, err);
  opipe_free(t->device->host, piece, PIECE, 16);
  const cuda_product_args args = {
      .a = (const void *)(uintptr_t)ops[OP_A].at,
      .b = (const void *)(uintptr_t)ops[OP_B].at,
      .bias = t->product->has_bias ? (const void *)(uintptr_t)ops[OP_BIAS].at
              : sums != 0          ? (const void *)(uintptr_t)(t->d + t->d_bytes - sums)
                                   : NULL,
      .aux = t->product->has_aux ? (void *)(uintptr_t)ops[OP_AUX].at : NULL,
      .d = (void *)(uintptr_t)t->d};
  return status < 0 ? status : cuda_product_bind(t->device, t->product, &args, &t->bound, err);
}

/* ---- one candidate ---- */

static int by_value(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

static double median(double *values, uint32_t n) {
  qsort(values, n, sizeof values[0], by_value);
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static CUresult reset(const tuning *t) {
  const cuda_driver *driver = t->device->place->driver;
  return t->c != 0 ? driver->copy(t->d, t->c, (size_t)t->d_bytes, t->device->control)
                   : driver->fill(t->d, UNWRITTEN, (size_t)t->d_bytes, t->device->control);
}

/* One run and its time. *out_refused: the library does not take the algorithm. */
static opipe_status run_once(const tuning *t, const cuda_lt_choice *choice, bool first,
                             bool *out_refused, double *out_ns, opipe_error *err) {
  const cuda_driver *driver = t->device->place->driver;
  CUstream stream = t->device->control;
  float ms = 0;
  CUDA_TRY(check(t, reset(t), "a measurement", err));
  CUDA_TRY(check(t, driver->event_record(t->start, stream), "cuEventRecord", err));
  *out_refused = cuda_product_run_as(t->device, t->bound, &choice->algo, t->workspace,
                                     choice->workspace_bytes, stream) != CUDA_LT_SUCCESS;
  if (*out_refused)
    return check(t, driver->stream_sync(stream), "cublasLtMatmul", err);
  CUDA_TRY(check(t, driver->event_record(t->end, stream), "cuEventRecord", err));
  CUDA_TRY(first ? check(t, driver->copy(t->first, t->d, (size_t)t->d_bytes, stream),
                         "a measurement", err)
                 : cuda_launch_on(t->device, t->compare, &t->comparison,
                                  t->comparison.block_args.args, stream, err));
  CUDA_TRY(check(t, driver->stream_sync(stream), "cublasLtMatmul", err));
  CUDA_TRY(check(t, driver->event_elapsed(&ms, t->start, t->end), "cuEventElapsedTime", err));
  *out_ns = (double)ms * 1e6;
  return OPIPE_OK;
}

/* The first run, of the algorithm that the library named, finds cold caches: it is compared with,
 * and not timed. */
static opipe_status run_all(tuning *t, const candidate *c, bool *out_refused, bool *out_steady,
                            double *out_ns, opipe_error *err) {
  const cuda_lt_choice *again = c->is_made ? &c->made : &c->named;
  double cold = 0;
  t->differs->code = CUDA_STATUS_OK;
  *out_refused = false;
  CUDA_TRY(run_once(t, &c->named, true, out_refused, &cold, err));
  for (uint32_t i = 0; i < t->n_runs && !*out_refused; ++i)
    CUDA_TRY(run_once(t, again, false, out_refused, &t->ns[i], err));
  *out_steady = t->differs->code == CUDA_STATUS_OK;
  *out_ns = *out_refused ? 0 : median(t->ns, t->n_runs);
  return OPIPE_OK;
}

/* ---- all of them ---- */

static opipe_status prepare(tuning *t, opipe_error *err) {
  const cuda_driver *driver = t->device->place->driver;
  CUDA_TRY(make_operands(t, err));
  CUDA_TRY(check(t, driver->event_create(&t->start, 0), "cuEventCreate", err));
  CUDA_TRY(check(t, driver->event_create(&t->end, 0), "cuEventCreate", err));
  t->differs = cuda_word_take(t->device, err);
  if (t->differs == NULL)
    return OPIPE_E_NOMEM;
  const cuda_zone_args args = {.data = (const void *)(uintptr_t)t->d,
                               .same = (const void *)(uintptr_t)t->first,
                               .status = t->differs,
                               .n = (int64_t)t->d_bytes};
  (void)cuda_plan_zone(&args, &t->comparison);
  return cuda_find_kernel(t->device, &t->comparison, &t->compare, err);
}

static opipe_status choose(tuning *t, opipe_kernel *io_kernel, opipe_error *err) {
  const candidate *best = NULL;
  for (uint32_t i = 0; i < t->n_candidates; ++i) {
    const candidate *c = &t->candidates[i];
    bool refused = !c->is_made && i != 0, steady = false; /* the first one is timed as it is */
    double ns = 0;
    if (!refused)
      CUDA_TRY(run_all(t, c, &refused, &steady, &ns, err));
    if (i == 0)
      io_kernel->own_ns = ns;
    if (refused || !c->is_made)
      continue;
    ++io_kernel->n_tried;
    io_kernel->n_dropped += !steady;
    if (steady && (best == NULL || ns < io_kernel->ns)) {
      best = c;
      io_kernel->ns = ns;
    }
  }
  if (best == NULL) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED,
                      "%.240s: %u algorithms ran, none gave the same bits %u times",
                      io_kernel->what, io_kernel->n_tried, t->n_runs);
  }
  (void)snprintf(io_kernel->choice, sizeof io_kernel->choice, "%s", best->text);
  return OPIPE_OK;
}

/* Nothing of it may be under work when it goes, where a run failed half-way too. */
static void release(tuning *t) {
  const cuda_driver *driver = t->device->place->driver;
  (void)driver->stream_sync(t->device->control);
  cuda_product_free(t->device, t->bound);
  if (t->start != NULL)
    (void)driver->event_destroy(t->start);
  if (t->end != NULL)
    (void)driver->event_destroy(t->end);
  if (t->differs != NULL)
    cuda_word_give(t->device, t->differs);
  cuda_memory_give(t->device, OPIPE_BUFFER_STAGING, t->memory, t->n_bytes);
}

static uint64_t larger(uint64_t a, uint64_t b) {
  return a > b ? a : b;
}

/* Algorithms that the library names, their texts, and what these make. */
static opipe_status list_candidates(tuning *t, const cuda_lt_descriptors *all, uint32_t most,
                                    opipe_error *err) {
  cuda_lt_choice named[CANDIDATES_MOST];
  CUDA_TRY(cuda_product_candidates(t->device, t->product, all, most, named, &t->n_candidates, err));
  for (uint32_t i = 0; i < t->n_candidates; ++i) {
    candidate *c = &t->candidates[i];
    c->named = named[i];
    CUDA_TRY(cuda_choice_text(t->device, &c->named.algo, c->text, sizeof c->text, err));
    c->is_made = cuda_choice_make(t->device, t->product, all, c->text, &c->made);
    t->workspace_bytes = larger(t->workspace_bytes, c->named.workspace_bytes);
    t->workspace_bytes = larger(t->workspace_bytes, c->is_made ? c->made.workspace_bytes : 0);
  }
  return OPIPE_OK;
}

/* Within an entry. */
static opipe_status tune(tuning *t, uint32_t n_candidates, opipe_kernel *io_kernel,
                         opipe_error *err) {
  cuda_lt_descriptors all;
  cuda_product_traits_of(t->device, t->product, &t->traits);
  CUDA_TRY(cuda_lt_describe(t->device, t->product, NULL, &all, err));
  opipe_status status = list_candidates(t, &all, n_candidates, err);
  cuda_lt_describe_end(&t->device->place->libraries->products, &all);
  if (status >= 0)
    status = prepare(t, err);
  if (status >= 0)
    status = choose(t, io_kernel, err);
  release(t);
  return status;
}

static const cuda_product *find(const opipe_program *program, const char *what) {
  char text[sizeof((opipe_kernel *)0)->what];
  for (const cuda_step *step = program->steps; step != NULL; step = step->next) {
    if (step->product == NULL || cuda_product_is_empty(step->product))
      continue;
    cuda_product_what(program->device, step->product, text, sizeof text);
    if (strcmp(text, what) == 0)
      return step->product;
  }
  return NULL;
}

opipe_status cuda_kernel_tune(opipe_program *program, const opipe_tune_params *params,
                              opipe_kernel *io_kernel, opipe_error *err) {
  opipe_device *device = program->device;
  if (!OPIPE_HAS(params, opipe_tune_params, n_runs) || !OPIPE_HAS(io_kernel, opipe_kernel, choice))
    return opipe_fail(err, OPIPE_E_ABI, "kernel_tune: a struct_size is too small");
  if (device->invariant) {
    return opipe_fail(
        err, OPIPE_E_UNSUPPORTED,
        "kernel_tune: with invariant=1 a product has one algorithm for all numbers of "
        "rows");
  }
  const uint32_t n_runs = params->n_runs != 0 ? params->n_runs : RUNS;
  const uint32_t n = params->n_candidates != 0 ? params->n_candidates : CANDIDATES;
  if (n_runs < 2 || n_runs > RUNS_MOST || n > CANDIDATES_MOST) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "kernel_tune: %u runs of %u candidates, 2 to %d of at most %d are possible",
                      n_runs, n, RUNS_MOST, CANDIDATES_MOST);
  }
  io_kernel->what[sizeof io_kernel->what - 1] = '\0';
  tuning *t = opipe_zeroed(device->host, "a measurement", sizeof *t, _Alignof(tuning), err);
  if (t == NULL)
    return OPIPE_E_NOMEM;
  *t = (tuning){.device = device, .n_runs = n_runs, .product = find(program, io_kernel->what)};
  io_kernel->flags = io_kernel->n_tried = io_kernel->n_dropped = 0;
  io_kernel->own_ns = io_kernel->ns = 0;
  opipe_status status =
      t->product != NULL
          ? cuda_enter(device, "kernel_tune", err)
          : opipe_fail(err, OPIPE_E_NOTFOUND, "kernel_tune: the program has no kernel '%.200s'",
                       io_kernel->what);
  if (status >= 0) {
    status = tune(t, n, io_kernel, err);
    cuda_leave(device);
  }
  opipe_free(device->host, t, sizeof *t, _Alignof(tuning));
  return status;
}
