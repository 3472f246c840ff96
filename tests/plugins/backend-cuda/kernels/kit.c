/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, launches and comparisons: see kit.h. */
#include "kit.h"

#include <stdio.h>

#include "kit_device.h"
#include "shim_rows.h"
#include "tests/plugins/backend-cuda/doubles/half.h"

enum { ZONE = 1024, MAX_TENSORS = 4096, MAX_OUTPUTS = 24 };

const uint32_t kit_types[KIT_TYPES] = {OPIPE_FLOAT, OPIPE_BFLOAT16, OPIPE_FLOAT16, OPIPE_DOUBLE};
int64_t kit_skew = 0;

static struct {
  unsigned char *memory;
  size_t before, bytes, behind;
} tensors[MAX_TENSORS];
static uint32_t n_tensors;

static uint32_t bytes_of(uint32_t dtype) {
  return opipe_dtype_row_of(dtype)->bits / 8;
}

kit_tensor kit_new(uint32_t dtype, int64_t n) {
  const uint32_t size = bytes_of(dtype);
  const size_t before = ZONE + (size_t)kit_skew * size, bytes = (size_t)n * size;
  unsigned char *memory = NULL;
  if (n_tensors < MAX_TENSORS && kit_on_device())
    memory = kit_device_alloc(before + bytes + ZONE);
  else if (n_tensors < MAX_TENSORS)
    (void)posix_memalign((void **)&memory, 256, before + bytes + ZONE);
  if (memory == NULL) {
    fprintf(stderr, "no memory for a tensor\n");
    exit(99);
  }
  memset(memory, 0xa5, before + bytes + ZONE);
  memset(memory + before, 0xff, bytes);
  tensors[n_tensors].memory = memory;
  tensors[n_tensors].before = before;
  tensors[n_tensors].bytes = bytes;
  tensors[n_tensors++].behind = ZONE;
  const kit_tensor t = {memory + before, n, dtype, size};
  return t;
}

void *kit_workspace(uint64_t n_bytes) {
  const int64_t skew = kit_skew;
  kit_skew = 0;
  void *data = kit_new(OPIPE_UINT8, (int64_t)n_bytes).data;
  kit_skew = skew;
  return data;
}

void *kit_placed(const void *from, size_t n_bytes) {
  void *to = kit_workspace(n_bytes);
  memcpy(to, from, n_bytes);
  return to;
}

cuda_status *kit_status(void) {
  static const cuda_status nothing = {0, 0, 0, 0};
  return kit_placed(&nothing, sizeof nothing);
}

double *kit_doubles(int64_t n) {
  double *p = kit_new(OPIPE_DOUBLE, n).data;
  memset(p, 0, (size_t)n * sizeof *p);
  return p;
}

bool kit_covers(size_t i, size_t n) {
  if (opi_test_is_sanitized())
    return opi_test_covers(i, n);
  return opi_test_covers(i, 5) || opi_test_covers(i + 2, 5);
}

kit_tensor kit_random(uint32_t dtype, int64_t n, uint32_t seed, double low, double high) {
  const kit_tensor t = kit_new(dtype, n);
  uint64_t state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
  for (int64_t i = 0; i < n; ++i) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    kit_set(&t, i, low + (high - low) * (double)(state >> 11) * 0x1p-53);
  }
  return t;
}

kit_tensor kit_copy(const kit_tensor *of) {
  const kit_tensor t = kit_new(of->dtype, of->n);
  memcpy(t.data, of->data, (size_t)of->n * of->bytes);
  return t;
}

static bool all_are(const unsigned char *p, size_t n, unsigned char value) {
  for (size_t i = 0; i < n; ++i) {
    if (p[i] != value)
      return false;
  }
  return true;
}

void kit_end(void) {
  for (uint32_t i = 0; i < n_tensors; ++i) {
    const unsigned char *end = tensors[i].memory + tensors[i].before + tensors[i].bytes;
    OPI_ASSERT(all_are(tensors[i].memory, tensors[i].before, 0xa5));
    OPI_ASSERT(all_are(end, tensors[i].behind, 0xa5));
    if (kit_on_device())
      kit_device_free(tensors[i].memory);
    else
      free(tensors[i].memory);
  }
  n_tensors = 0;
}

/* ---- elements ---- */

/* To `digits` bits, exponents from `low` on: halves to even. */
static double rounded(double x, int digits, int low, double largest) {
  int exponent = 0;
  if (x == 0 || x - x != 0)
    return x;
  (void)frexp(x, &exponent);
  const int unit = (exponent < low ? low : exponent) - digits;
  const double y = ldexp(nearbyint(ldexp(x, -unit)), unit);
  return fabs(y) > largest ? copysign((double)INFINITY, x) : y;
}

static uint16_t half_bits(double x) {
  const double y = rounded(x, 11, -13, 65504);
  const uint16_t sign = signbit(y) ? 0x8000 : 0;
  if (y != y)
    return 0x7e00;
  const double size = fabs(y);
  int exponent = 0;
  if (isinf(size))
    return sign | 0x7c00;
  if (size < 0x1p-14)
    return (uint16_t)(sign | (uint16_t)ldexp(size, 24));
  const double fraction = frexp(size, &exponent); /* in [0.5, 1) */
  return (uint16_t)(sign | (unsigned)(exponent + 14) << 10 |
                    ((unsigned)ldexp(fraction, 11) & 1023u));
}

double kit_get(const kit_tensor *t, int64_t i) {
  const unsigned char *at = (const unsigned char *)t->data + i * t->bytes;
  uint32_t bits = 0;
  float value;
  switch (t->dtype) {
    case OPIPE_FLOAT:
      memcpy(&value, at, sizeof value);
      return (double)value;
    case OPIPE_BFLOAT16:
      bits = (uint32_t)at[0] << 16 | (uint32_t)at[1] << 24;
      memcpy(&value, &bits, sizeof value);
      return (double)value;
    case OPIPE_FLOAT16:
      return half_to_double((uint16_t)(at[0] | at[1] << 8));
    case OPIPE_DOUBLE:
      return *(const double *)(const void *)at;
    case OPIPE_INT64:
      return (double)*(const int64_t *)(const void *)at;
    case OPIPE_UINT64:
      return (double)*(const uint64_t *)(const void *)at;
    case OPIPE_INT32:
      return (double)*(const int32_t *)(const void *)at;
    case OPIPE_UINT32:
      return (double)*(const uint32_t *)(const void *)at;
    case OPIPE_INT16:
      return (double)*(const int16_t *)(const void *)at;
    case OPIPE_UINT16:
      return (double)*(const uint16_t *)(const void *)at;
    case OPIPE_INT8:
      return (double)*(const int8_t *)(const void *)at;
    default: /* uint8, bool */
      return (double)*at;
  }
}

void kit_set(const kit_tensor *t, int64_t i, double value) {
  unsigned char *at = (unsigned char *)t->data + i * t->bytes;
  const float single =
      (float)(t->dtype == OPIPE_BFLOAT16 ? rounded(value, 8, -125, 0x1.fep127) : value);
  const uint16_t half = t->dtype == OPIPE_FLOAT16 ? half_bits(value) : 0;
  switch (t->dtype) {
    case OPIPE_FLOAT:
      memcpy(at, &single, sizeof single);
      break;
    case OPIPE_BFLOAT16:
      memcpy(at, (const char *)&single + 2, 2);
      break;
    case OPIPE_FLOAT16:
      memcpy(at, &half, sizeof half);
      break;
    case OPIPE_DOUBLE:
      memcpy(at, &value, sizeof value);
      break;
    default: {
      const int64_t whole = (int64_t)floor(value);
      memcpy(at, &whole, t->bytes);
      break;
    }
  }
}

/* ---- launches ---- */

static void launch(const cuda_launch *l, uint64_t seed) {
  if (kit_on_device()) {
    kit_device_launch(l);
    return;
  }
  for (uint32_t i = 0; i < cuda_shim_n_rows; ++i) {
    if (strcmp(cuda_shim_rows[i].kernel, l->kernel) == 0) {
      OPI_ASSERT_INT(cuda_shim_rows[i].args_bytes, l->args_bytes);
      cuda_shim_rows[i].run(cuda_launch_args(l), l->grid, l->block, l->shared_bytes, seed);
      return;
    }
  }
  OPI_FAIL("no kernel %s", l->kernel);
}

void kit_run(const cuda_launch *launches, uint32_t n, const kit_tensor *const *outputs,
             uint32_t n_outputs) {
  void *saved[2][MAX_OUTPUTS] = {{NULL}};
  OPI_ASSERT_FATAL(n_outputs <= MAX_OUTPUTS);
  for (int turn = 0; turn < 3; ++turn) {
    for (uint32_t o = 0; o < n_outputs; ++o) {
      const size_t bytes = outputs[o] == NULL ? 0 : (size_t)outputs[o]->n * outputs[o]->bytes;
      if (turn == 0) {
        saved[0][o] = malloc(bytes + 1);
        saved[1][o] = malloc(bytes + 1);
        OPI_ASSERT_FATAL(saved[0][o] != NULL && saved[1][o] != NULL);
      }
      if (bytes > 0) {
        memcpy(turn == 0 ? saved[0][o] : outputs[o]->data,
               turn == 0 ? outputs[o]->data : saved[0][o], bytes);
      }
    }
    for (uint32_t i = 0; i < n; ++i)
      launch(&launches[i], (uint64_t)turn * 77);
    for (uint32_t o = 0; o < n_outputs; ++o) {
      const size_t bytes = outputs[o] == NULL ? 0 : (size_t)outputs[o]->n * outputs[o]->bytes;
      if (turn == 0 && bytes > 0) {
        memcpy(saved[1][o], outputs[o]->data, bytes);
      } else if (bytes > 0 && memcmp(saved[1][o], outputs[o]->data, bytes) != 0) {
        OPI_FAIL("%s: output %u has other bits when threads run in another order",
                 launches[0].kernel, o);
      }
    }
  }
  for (uint32_t o = 0; o < n_outputs; ++o) {
    free(saved[0][o]);
    free(saved[1][o]);
  }
}

/* ---- comparisons ---- */

static double usual(uint32_t dtype) {
  return dtype == OPIPE_FLOAT      ? 2e-6
         : dtype == OPIPE_BFLOAT16 ? 5e-3
         : dtype == OPIPE_FLOAT16  ? 7e-4
                                   : 1e-13;
}

bool kit_close(const kit_tensor *found, const double *wanted, double tol, const char *what,
               int line) {
  double error = 0, norm = 0, most = 0, worst = 0;
  int64_t worst_at = 0;
  tol = tol == 0 ? usual(found->dtype) : tol;
  for (int64_t i = 0; i < found->n; ++i) {
    const double x = kit_get(found, i), y = wanted[i];
    if (y - y != 0 || x - x != 0) {
      if (!(x == y || (x != x && y != y))) {
        printf("line %d: %s[%lld] is %g, not %g\n", line, what, (long long)i, x, y);
        return false;
      }
      continue;
    }
    error += (x - y) * (x - y);
    norm += y * y;
    most = fabs(y) > most ? fabs(y) : most;
    worst_at = fabs(x - y) > worst ? i : worst_at;
    worst = fabs(x - y) > worst ? fabs(x - y) : worst;
  }
  if (sqrt(error) <= tol * sqrt(norm) + 1e-300 && worst <= 8 * tol * most + 1e-300)
    return true;
  printf("line %d: %s: off by %g of its norm (%g allowed); [%lld] is %g, not %g\n", line, what,
         sqrt(error / (norm > 0 ? norm : 1)), tol, (long long)worst_at, kit_get(found, worst_at),
         wanted[worst_at]);
  return false;
}

bool kit_same(const kit_tensor *a, int64_t first_a, const kit_tensor *b, int64_t first_b,
              int64_t n) {
  return memcmp((const char *)a->data + first_a * a->bytes,
                (const char *)b->data + first_b * b->bytes, (size_t)n * a->bytes) == 0;
}
