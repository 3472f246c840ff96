/* SPDX-License-Identifier: Apache-2.0 */
/* cublasLt's double: products, by plain loops over operands that are widened first. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "double.h"
#include "half.h"
#include "products.h"

static double load(int type, const void *data, uint64_t i) {
  uint32_t bits = 0;
  float value = 0;
  switch (type) {
    case CUDA_R64F:
      return ((const double *)data)[i];
    case CUDA_R32F:
      return (double)((const float *)data)[i];
    case CUDA_R16F:
      return half_to_double(((const uint16_t *)data)[i]);
    default:
      bits = (uint32_t)((const uint16_t *)data)[i] << 16;
      memcpy(&value, &bits, sizeof value);
      return (double)value;
  }
}

static void store(int type, void *data, uint64_t i, double value) {
  const float single = (float)value;
  uint32_t bits = 0;
  switch (type) {
    case CUDA_R64F:
      ((double *)data)[i] = value;
      break;
    case CUDA_R32F:
      ((float *)data)[i] = single;
      break;
    case CUDA_R16F:
      ((uint16_t *)data)[i] = to_half(value);
      break;
    default:
      memcpy(&bits, &single, sizeof bits);
      if (!__builtin_isnan(single))
        bits += 0x7fff + (bits >> 16 & 1);
      ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
  }
}

/* Adds x y to a sum, in fp32 but for doubles. */
static double add(int type, double sum, double x, double y) {
  return type == CUDA_R64F ? sum + x * y : (double)((float)sum + (float)(x * y));
}

/* A number of fp32 as tensor cores read it: 10 bits behind the point are left. */
static double to_tf32(double value) {
  const float single = (float)value;
  uint32_t bits = 0;
  float rounded = 0;
  memcpy(&bits, &single, sizeof bits);
  if (!__builtin_isfinite(single))
    return value;
  bits = (bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu;
  memcpy(&rounded, &bits, sizeof rounded);
  return (double)rounded;
}

static double load_operand(const problem *p, const void *data, uint64_t i) {
  const double value = load(p->a.type, data, i);
  return p->desc.compute == CUDA_COMPUTE_32F_FAST_TF32 ? to_tf32(value) : value;
}

/* A sum of pieces as it is kept between: in the result's type, or in the one that is summed in. */
static double keep(const product_work *w, double value) {
  uint64_t room = 0;
  if ((w->by->scheme & (CUDA_LT_SCHEME_INPLACE | CUDA_LT_SCHEME_OUTPUT)) == 0)
    return value;
  store(w->p.d.type, &room, 0, value);
  return load(w->p.d.type, &room, 0);
}

/* An operand as [k][n], and sums [SPLIT_MOST][n]: in doubles where it has them, else in floats,
 * which hold all that the others have; the other one is NULL. */
typedef struct row_set {
  double *wide;
  float *narrow;
} row_set;

static row_set make_rows(int type, uint64_t n) {
  row_set rows = {NULL, NULL};
  if (type == CUDA_R64F)
    rows.wide = malloc(n * sizeof *rows.wide);
  else
    rows.narrow = malloc(n * sizeof *rows.narrow);
  if (rows.wide == NULL && rows.narrow == NULL)
    abort();
  return rows;
}

static double sum_at(row_set sums, uint64_t i) {
  return sums.wide != NULL ? sums.wide[i] : (double)sums.narrow[i];
}

static void free_rows(row_set rows) {
  free(rows.wide);
  free(rows.narrow);
}

/* by_distance: it lies so, too, with rows at a distance. */
static void widen_operand(const problem *p, const struct cuda_lt_layout *x, const void *data,
                          bool by_distance, uint64_t n, row_set out) {
  const uint64_t distance = (uint64_t)x->distance;
  for (uint64_t k = 0; k < p->k; ++k) {
    for (uint64_t i = 0; i < n; ++i) {
      const double value = load_operand(p, data, by_distance ? i + k * distance : k + i * distance);
      if (out.wide != NULL)
        out.wide[k * n + i] = value;
      else
        out.narrow[k * n + i] = (float)value;
    }
  }
}

/* The vendor leaves D over A or B undefined: they are still what they were. */
static void check_operand(const problem *p, const struct cuda_lt_layout *x, const void *data,
                          bool by_distance, uint64_t n, row_set was) {
  const row_set is = make_rows(p->a.type, p->k * n);
  widen_operand(p, x, data, by_distance, n, is);
  if (is.wide != NULL ? memcmp(is.wide, was.wide, p->k * n * sizeof *is.wide) != 0
                      : memcmp(is.narrow, was.narrow, p->k * n * sizeof *is.narrow) != 0)
    cuda_double_die("a product writes over what it reads");
  free_rows(is);
}

/* sums += x y. No sanitizer looks at each of so many elements of memory that is ours. */
__attribute__((no_sanitize("address", "undefined"))) static void add_row(const float *x, float y,
                                                                         uint64_t n, float *sums) {
  for (uint64_t i = 0; i < n; ++i)
    sums[i] += x[i] * y;
}

/* Sums of op(A) op(B) for column j of D: pieces of k, each in rising order, then of these. sums
 * [SPLIT_MOST][m]; the result is in the first. first: the piece that is done first. */
static void column_sums(const product_work *w, row_set a, row_set b, uint64_t j, uint64_t first,
                        row_set sums) {
  const problem *p = &w->p;
  const uint64_t n = w->n_pieces, m = p->m;
  if (sums.wide != NULL)
    memset(sums.wide, 0, n * m * sizeof *sums.wide);
  else
    memset(sums.narrow, 0, n * m * sizeof *sums.narrow);
  for (uint64_t k = 0; k < p->k; ++k) {
    const uint64_t piece = (k * n / p->k + n - first % n) % n;
    if (sums.narrow != NULL)
      add_row(a.narrow + k * m, b.narrow[k * p->n + j], m, sums.narrow + piece * m);
    for (uint64_t i = 0; sums.wide != NULL && i < m; ++i)
      sums.wide[piece * m + i] += a.wide[k * m + i] * b.wide[k * p->n + j];
  }
  for (uint64_t i = 0; n > 1 && i < m; ++i) {
    double sum = keep(w, sum_at(sums, i));
    for (uint64_t piece = 1; piece < n; ++piece)
      sum = keep(w, add(p->a.type, sum, keep(w, sum_at(sums, piece * m + i)), 1));
    if (sums.wide != NULL)
      sums.wide[i] = sum;
    else
      sums.narrow[i] = (float)sum;
  }
}

/* Sums of op(A)'s rows or of op(B)'s columns over k, as operands lie in memory: pieces as those of
 * the product, whatever was in `sums` before. */
static void sum_operand(const product_work *w, uint64_t first) {
  const problem *p = &w->p;
  const bool of_a = p->desc.epilogue == CUDA_LT_EPILOGUE_SUMS_A;
  const struct cuda_lt_layout *x = of_a ? &p->a : &p->b;
  const bool by_distance = of_a ? p->desc.trans_a != CUDA_OP_T : p->desc.trans_b == CUDA_OP_T;
  const uint64_t n = of_a ? p->m : p->n, pieces = w->n_pieces;
  for (uint64_t i = 0; i < n; ++i) {
    double sums[SPLIT_MOST] = {0};
    for (uint64_t k = 0; k < p->k; ++k) {
      const uint64_t at =
          by_distance ? i + k * (uint64_t)x->distance : k + i * (uint64_t)x->distance;
      double *to = &sums[(k * pieces / p->k + pieces - first % pieces) % pieces];
      *to = add(p->a.type, *to, load(p->a.type, of_a ? w->a : w->b, at), 1);
    }
    for (uint64_t piece = 1; piece < pieces; ++piece)
      sums[0] = keep(w, add(p->a.type, keep(w, sums[0]), keep(w, sums[piece]), 1));
    store(p->d.type, w->sums, i, sums[0]);
  }
}

/* Applies the epilogue to a sum; element i of column j. */
static double through(const product_work *w, double value, uint64_t i, uint64_t j) {
  const struct cuda_lt_desc *desc = &w->p.desc;
  const uint64_t at = i + j * (uint64_t)desc->aux_distance;
  const double root = 0.79788456080286535588; /* of 2 / pi */
  if (w->bias != NULL)
    value += load(w->p.d.type, w->bias, i);
  if (desc->epilogue == CUDA_LT_EPILOGUE_DGELU) {
    const double x = load(w->p.d.type, w->aux, at);
    const double t = tanh(root * (x + 0.044715 * x * x * x));
    return value * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x));
  }
  if (w->aux != NULL)
    store(w->p.d.type, w->aux, at, value);
  if ((desc->epilogue & CUDA_LT_EPILOGUE_GELU) == 0)
    return value;
  return 0.5 * value * (1 + tanh(root * (value + 0.044715 * value * value * value)));
}

void product_run(const void *args) {
  const product_work *w = args;
  const problem *p = &w->p;
  const int type = p->d.type;
  const size_t size = size_of(p->a.type), d_size = size_of(type);
  static uint64_t n_unsteady; /* under the driver's lock */
  const uint64_t turn = w->by->unsteady || w->by->summing ? n_unsteady++ : 0;
  const uint64_t first = w->by->unsteady ? turn : 0;
  const bool t_a = p->desc.trans_a == CUDA_OP_T, t_b = p->desc.trans_b == CUDA_OP_T;
  const row_set wide_a = make_rows(p->a.type, p->k * p->m),
                wide_b = make_rows(p->a.type, p->k * p->n),
                sums = make_rows(p->a.type, SPLIT_MOST * p->m);
  if (w->workspace_bytes > 0)
    memset(w->workspace, 0x5b, w->workspace_bytes);
  for (int64_t batch = 0; batch < p->d.batch; ++batch) {
    const char *a = (const char *)w->a + (size_t)(batch * p->a.stride) * size;
    const char *b = (const char *)w->b + (size_t)(batch * p->b.stride) * size;
    const char *c = (const char *)w->c + (size_t)(batch * p->c.stride) * d_size;
    char *d = (char *)w->d + (size_t)(batch * p->d.stride) * d_size;
    widen_operand(p, &p->a, a, !t_a, p->m, wide_a);
    widen_operand(p, &p->b, b, t_b, p->n, wide_b);
    for (uint64_t j = 0; j < p->n; ++j) {
      column_sums(w, wide_a, wide_b, j, first, sums);
      for (uint64_t i = 0; i < p->m; ++i) {
        double value = w->alpha * sum_at(sums, i);
        if (w->beta != 0)
          value += w->beta * load(type, c, i + j * (uint64_t)p->c.distance);
        store(type, d, i + j * (uint64_t)p->d.distance, through(w, value, i, j));
      }
    }
    check_operand(p, &p->a, a, !t_a, p->m, wide_a);
    check_operand(p, &p->b, b, t_b, p->n, wide_b);
  }
  if (w->sums != NULL)
    sum_operand(w, turn);
  free_rows(wide_a);
  free_rows(wide_b);
  free_rows(sums);
}
