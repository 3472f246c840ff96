/* SPDX-License-Identifier: Apache-2.0 */
/* Element-wise operators: a function on runs, broadcast over its inputs.
 */
#ifndef OPIPE_BACKEND_CPU_OPS_MAP_H_
#define OPIPE_BACKEND_CPU_OPS_MAP_H_

#include "loop.h"

/* out[k] = f(in[0][k], in[1][k], ...), k < n <= CPU_RUN. out may be an input. */
typedef void (*cpu_run_fn)(int64_t n, const void *const *in, void *out, const double *param);

enum { CPU_NO_FAST = -1, CPU_MAP_MAX_IN = 3 };

/* One operator: its function per class (F32, F64, I64, U64; NULL: the type is not supported), and
 * up to two float attributes that become param[0] and param[1]. */
typedef struct cpu_map {
  cpu_run_fn fn[4];
  const char *attr[2];
  double fallback[2];
  int fast; /* cpu_unary or cpu_binary, CPU_NO_FAST */
} cpu_map;

/* Plan and rule for out = f(in ...), all of one type, or to bool. Its inputs broadcast.
 *   fold     any number of inputs, taken two at a time from the left
 *   divides  an integer divisor of zero is an error of the data */
enum { CPU_MAP_FOLD = 1, CPU_MAP_TO_BOOL = 2, CPU_MAP_MEAN = 4, CPU_MAP_DIVIDES = 8 };
opipe_status cpu_prepare_map(cpu_prep *p, const cpu_map *map, uint32_t flags);

/* The same with classes chosen by the caller: class_in [n_in]. */
typedef struct cpu_map_plan {
  cpu_loop loop;
  cpu_class class_in[CPU_MAP_MAX_IN];
  cpu_class class_out;
  cpu_run_fn fn;
  cpu_unary fast_unary;
  cpu_binary fast_binary;
  uint32_t n_in;
  uint32_t flags;
  bool fast;
  double param[2];
} cpu_map_plan;
opipe_status cpu_map_init(cpu_prep *p, cpu_map_plan *plan);
/* Marks every input that the output may be written over. */
void cpu_map_inplace(cpu_prep *p);

/* Defines name_f32 and name_f64, functions on runs. In EXPR x is the element, `real` its type, p
 * and q are the parameters. */
#define CPU_MAP1_TYPE(NAME, T, EXPR) \
  CPU_MAP_TYPE(NAME, T, const real *a = in[0];, const real x = a[k];, EXPR)
/* RUNS declares the inputs' runs, READ element k of each. */
#define CPU_MAP_TYPE(NAME, T, RUNS, READ, EXPR)                                        \
  static void NAME(int64_t n, const void *const *in, void *out, const double *param) { \
    typedef T real;                                                                    \
    RUNS real *y = out;                                                                \
    const real p = (real)param[0];                                                     \
    const real q = (real)param[1];                                                     \
    (void)p;                                                                           \
    (void)q;                                                                           \
    for (int64_t k = 0; k < n; ++k) {                                                  \
      READ y[k] = (real)(EXPR);                                                        \
    }                                                                                  \
  }
#define CPU_MAP1(NAME, EXPR)             \
  CPU_MAP1_TYPE(NAME##_f32, float, EXPR) \
  CPU_MAP1_TYPE(NAME##_f64, double, EXPR)

/* The same of two elements a and b, the result of type R. */
#define CPU_MAP2_TYPE(NAME, T, R, EXPR)                                                \
  static void NAME(int64_t n, const void *const *in, void *out, const double *param) { \
    typedef T real;                                                                    \
    const real *first = in[0];                                                         \
    const real *second = in[1];                                                        \
    R *y = out;                                                                        \
    (void)param;                                                                       \
    for (int64_t k = 0; k < n; ++k) {                                                  \
      const real a = first[k];                                                         \
      const real b = second[k];                                                        \
      y[k] = (R)(EXPR);                                                                \
    }                                                                                  \
  }

#endif
