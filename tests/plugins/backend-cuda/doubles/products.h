/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of cublasLt's double. */
#ifndef OPIPE_TEST_CUDA_PRODUCTS_H_
#define OPIPE_TEST_CUDA_PRODUCTS_H_

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"

struct cuda_lt_desc {
  int compute, scale;
  int32_t trans_a, trans_b;
  uint32_t epilogue;
  int32_t processors; /* that are aimed at; 0: all */
  int32_t bias_type;  /* -1: D's */
  const void *bias;   /* of sums over k: written */
  void *aux;
  int64_t aux_distance;
};
struct cuda_lt_layout {
  int type;
  uint64_t rows, columns;
  int64_t distance;
  int32_t batch;
  int64_t stride;
};
typedef struct problem {
  struct cuda_lt_desc desc;
  struct cuda_lt_layout a, b, c, d;
  uint64_t m, n, k;
} problem;

enum { LOST = 1, CHANGED = 2 }; /* made from attributes: refused, or with other bits */
typedef struct variant {
  int32_t id, split;
  uint32_t tile, stages, scheme, custom;
  double cost;   /* of a multiply-add, in units of the first one's */
  bool deep;     /* for deep products only */
  bool whole;    /* for operands at multiples of 16 bytes only */
  bool unsteady; /* its pieces are added as they are done */
  bool summing;  /* for sums over k only, whose pieces are */
  int8_t unsaid;
} variant;
enum { SPLIT_MOST = 4 };

/* A product on its way through a stream. */
typedef struct product_work {
  problem p;
  const variant *by;
  uint64_t n_pieces;
  const void *a, *b, *c, *bias;
  void *d, *aux, *workspace;
  void *sums; /* over k, of A or B; NULL: none */
  uint64_t workspace_bytes;
  double alpha, beta;
} product_work;
void product_run(const void *work);

static inline size_t size_of(int type) {
  return type == CUDA_R64F ? 8 : type == CUDA_R32F ? 4 : 2;
}

#endif
