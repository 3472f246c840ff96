/* SPDX-License-Identifier: Apache-2.0 */
/* Products of half types (and TF32) whose extents are no whole vectors where rows run along them,
 * though distances are: the library's fast kernels want vectors there, too (cuBLAS, "Tensor Core
 * Usage"). A large one is made of the part that is even, and what is left beside it:
 *
 *        n (of our rows)
 *      ┌───────────┬┐                    k: what is left comes first, so that the even part adds
 *   m  │   even    ││ left beside it        to it before it rounds
 *      └───────────┴┘
 */
#include "rule.h"

enum { VECTOR_BYTES = 16, LEAST_VECTORS = 16 /* of an even part */ };

typedef struct parts {
  int64_t n[2];     /* extents; those of the second 0: there is none */
  int64_t first[2]; /* where they begin */
} parts;

/* An extent in its even part and the rest. */
static parts parts_of(int64_t extent, int64_t unit, bool runs) {
  const int64_t rest = runs && extent >= LEAST_VECTORS * unit ? extent % unit : 0;
  return (parts){{extent - rest, rest}, {0, extent - rest}};
}

static void move(cuda_spot *spot, uint64_t *io_offset, int64_t elements, uint32_t size) {
  spot->bytes += elements * (int64_t)size;
  *io_offset += (uint64_t)(elements * (int64_t)size);
}

static opipe_status emit_spotted(cuda_rule *r, const cuda_product *p, const cuda_spots *at) {
  const struct {
    size_t offset;
    const cuda_spot *spot;
  } all[] = {{offsetof(cuda_product_args, a), &at->a},
             {offsetof(cuda_product_args, b), &at->b},
             {offsetof(cuda_product_args, c), &at->c},
             {offsetof(cuda_product_args, d), &at->d},
             {offsetof(cuda_product_args, bias), p->has_bias ? &at->bias : NULL},
             {offsetof(cuda_product_args, aux), p->has_aux ? &at->aux : NULL}};
  CUDA_TRY(cuda_emit_product(r, p));
  for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
    if (all[i].spot != NULL && all[i].spot->value != OPIPE_NONE)
      CUDA_TRY(cuda_point(r, all[i].offset, all[i].spot->value, all[i].spot->bytes));
  }
  return OPIPE_OK;
}

/* m, n, k: which part of each. */
static opipe_status emit_part(cuda_rule *r, const cuda_product *whole, const cuda_spots *at,
                              const parts *of, const int *which) {
  const uint32_t size = opipe_dtype_bits(whole->dtype) / 8;
  const uint32_t d_size = opipe_dtype_bits(whole->d_dtype) / 8;
  const int64_t m = of[0].first[which[0]], n = of[1].first[which[1]], k = of[2].first[which[2]];
  cuda_product p = *whole;
  cuda_spots spots = *at;
  const int64_t d = n * p.d_distance + m;
  uint64_t aux = 0;
  p.m = of[0].n[which[0]];
  p.n = of[1].n[which[1]];
  p.k = of[2].n[which[2]];
  move(&spots.a, &p.a_offset, p.trans_a ? m * p.a_distance + k : k * p.a_distance + m, size);
  move(&spots.b, &p.b_offset, p.trans_b ? k * p.b_distance + n : n * p.b_distance + k, size);
  move(&spots.d, &p.d_offset, d, d_size);
  move(&spots.bias, &p.bias_offset, m, d_size);
  spots.c.bytes += d * (int64_t)d_size;
  move(&spots.aux, &aux, d, d_size);
  if (of[2].n[1] > 0 && which[2] == 0) { /* the rest was made before */
    p.beta = 1.0;
    spots.c.value = OPIPE_NONE;
  }
  return emit_spotted(r, &p, &spots);
}

opipe_status cuda_emit_even(cuda_rule *r, const cuda_product *p, const cuda_spots *at) {
  const opipe_device *device = r->program->device;
  const int64_t unit = VECTOR_BYTES / (int64_t)(opipe_dtype_bits(p->dtype) / 8);
  const bool may = p->batch == 1 && cuda_takes_vectors(device, p->dtype) &&
                   cuda_is_large_product(device, p->m, p->n, p->k) &&
                   !cuda_is_odd_row(p->dtype, p->a_distance) &&
                   !cuda_is_odd_row(p->dtype, p->b_distance) &&
                   !cuda_is_odd_row(p->d_dtype, p->d_distance);
  /* twice rounded is what a sum would be with an addend, a bias or a function behind it */
  const bool adds = p->d_dtype == OPIPE_FLOAT || p->beta == 0;
  const bool plain = adds && !p->has_bias && p->through == CUDA_THROUGH_NOTHING;
  const parts of[3] = {parts_of(p->m, unit, may), parts_of(p->n, unit, may && p->trans_b != 0),
                       parts_of(p->k, unit, may && plain && (p->trans_a != 0 || p->trans_b == 0))};
  if (of[0].n[1] + of[1].n[1] + of[2].n[1] > 0 && p->sums != CUDA_SUMS_NOTHING)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "parts of a product make no sums beside");
  for (int i = 0; i < 8; ++i) {
    const int which[3] = {i >> 2, i >> 1 & 1, 1 - (i & 1)};
    bool is_there = true;
    for (int k = 0; k < 3; ++k)
      is_there = is_there && (which[k] == 0 || of[k].n[1] > 0);
    CUDA_TRY(is_there ? emit_part(r, p, at, of, which) : OPIPE_OK);
  }
  return OPIPE_OK;
}
