/* SPDX-License-Identifier: Apache-2.0 */
/* A product as recurrent layers take it, in one type; see recurrent_gates_body.h.
 */
typedef struct REC(factors) { /* c [m,n] = plus + a [m,k] packed [k,n] */
  int64_t m, k, n;
  const REAL *a;
  int64_t a_stride;
  const void *packed;
  const REAL *plus; /* NULL: none */
  int64_t plus_stride;
  REAL *c;
  int64_t c_stride;
} REC(factors);
