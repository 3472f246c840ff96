/* SPDX-License-Identifier: Apache-2.0 */
/* Fused attention against plain loops in double, for every option; the same bits on every
 * instruction set and number of threads, for both layouts, and for a row or a sequence computed
 * alone. */
#include "kernel_test.h"

/* ctest: timeout=120 */

typedef struct setting {
  int64_t batch, heads, kv_heads, q_rows, kv_rows, qk_dim, v_dim;
  bool causal;
  int64_t causal_offset, window;
  float softcap;
  bool cap_after_mask;
  int mask;   /* 0 none, 1 additive [q, kv], 2 additive [batch, 1, 1, kv], 3 bool [batch, heads, q,
                 kv] */
  bool valid; /* kv_valid given */
} setting;

static const setting settings[] = {
    {1, 1, 1, 1, 1, 1, 1, false, 0, 0, 0.0f, false, 0, false},
    {2, 4, 4, 50, 50, 64, 64, false, 0, 0, 0.0f, false, 0, false},
    {2, 4, 4, 50, 50, 64, 64, true, 0, 0, 0.0f, false, 0, false},
    {1, 6, 2, 7, 300, 40, 24, true, 293, 0, 0.0f, false, 0, false},
    {2, 4, 1, 1, 130, 64, 64, true, 129, 0, 0.0f, false, 0, false},
    {1, 2, 2, 33, 65, 16, 80, false, 0, 0, 0.0f, false, 1, false},
    {2, 2, 2, 30, 70, 20, 130, false, 0, 0, 5.0f, false, 2, false},
    {2, 2, 2, 30, 70, 20, 33, false, 0, 0, 5.0f, true, 1, false},
    {2, 2, 2, 29, 61, 8, 16, true, 10, 0, 0.0f, false, 3, false},
    {1, 2, 2, 100, 100, 32, 32, true, 0, 17, 0.0f, false, 0, false},
    {2, 2, 1, 10, 90, 32, 32, true, 5, 0, 0.0f, false, 0, true},
    {1, 3, 3, 40, 20, 16, 16, true, -5, 0, 0.0f, false, 0, false},
    {1, 1, 1, 3, 600, 300, 16, false, 0, 0, 0.0f, false, 0, false},
    {2, 6, 2, 20, 700, 64, 64, true, 680, 300, 0.0f, false, 0, false},
    {2, 8, 2, 18, 290, 40, 48, true, 272, 0, 3.0f, false, 3, false},
    {2, 8, 2, 5, 530, 32, 32, true, 525, 200, 3.0f, true, 1, true},
    {1, 32, 2, 16, 70, 16, 16, true, 54, 0, 0.0f, false, 0, false},
};
enum { N_SETTINGS = sizeof settings / sizeof settings[0] };

typedef struct tensors {
  float *q, *k, *v, *mask;
  uint8_t *keep;
  int64_t valid[2];
} tensors;

/* [batch, row, head, dim]; values of about 1. */
static tensors make(const setting *s) {
  tensors t;
  t.q = kernel_random(s->batch * s->q_rows * s->heads * s->qk_dim, 1);
  t.k = kernel_random(s->batch * s->kv_rows * s->kv_heads * s->qk_dim, 2);
  t.v = kernel_random(s->batch * s->kv_rows * s->kv_heads * s->v_dim, 3);
  int64_t size = s->batch * s->heads * s->q_rows * s->kv_rows;
  t.mask = kernel_random(size, 4);
  t.keep = kernel_memory((size_t)size);
  for (int64_t i = 0; i < size; ++i) {
    t.keep[i] = t.mask[i] > -0.3f;
    t.mask[i] = t.mask[i] < -0.7f ? -INFINITY : t.mask[i];
  }
  for (int64_t i = 0; i < s->kv_rows; ++i) /* one row that sees nothing */
    t.keep[i] = 0;
  t.valid[0] = s->kv_rows / 3;
  t.valid[1] = s->kv_rows;
  return t;
}

static void drop(tensors *t) {
  free(t->q), free(t->k), free(t->v), free(t->mask), free(t->keep);
}

static cpu_attention_args arguments(const setting *s, const tensors *t, float *out) {
  cpu_attention_args g = {
      .batch = s->batch,
      .heads = s->heads,
      .kv_heads = s->kv_heads,
      .q_rows = s->q_rows,
      .kv_rows = s->kv_rows,
      .qk_dim = s->qk_dim,
      .v_dim = s->v_dim,
      .q = t->q,
      .k = t->k,
      .v = t->v,
      .q_stride = {s->q_rows * s->heads * s->qk_dim, s->qk_dim, s->heads * s->qk_dim},
      .k_stride = {s->kv_rows * s->kv_heads * s->qk_dim, s->qk_dim, s->kv_heads * s->qk_dim},
      .v_stride = {s->kv_rows * s->kv_heads * s->v_dim, s->v_dim, s->kv_heads * s->v_dim},
      .out = out,
      .out_stride = {s->q_rows * s->heads * s->v_dim, s->v_dim, s->heads * s->v_dim},
      .scale = 0.3f,
      .softcap = s->softcap,
      .cap_after_mask = s->cap_after_mask,
      .causal = s->causal,
      .causal_offset = s->causal_offset,
      .window = s->window,
      .kv_valid = s->valid ? t->valid : NULL,
      .mask_add = s->mask == 1 || s->mask == 2 ? t->mask : NULL,
      .mask_keep = s->mask == 3 ? t->keep : NULL,
  };
  if (s->mask == 1) {
    g.mask_stride[2] = s->kv_rows;
  } else if (s->mask == 2) {
    g.mask_stride[0] = s->kv_rows;
  } else {
    g.mask_stride[0] = s->heads * s->q_rows * s->kv_rows;
    g.mask_stride[1] = s->q_rows * s->kv_rows;
    g.mask_stride[2] = s->kv_rows;
  }
  g.mask_stride[3] = 1;
  return g;
}

static double exact_score(const cpu_attention_args *g, const float *q, const float *k, int64_t b,
                          int64_t h, int64_t i, int64_t j) {
  double s = 0.0;
  int64_t at =
      b * g->mask_stride[0] + h * g->mask_stride[1] + i * g->mask_stride[2] + j * g->mask_stride[3];
  double mask = g->mask_add != NULL ? (double)g->mask_add[at] : 0.0;
  int64_t last = i + g->causal_offset;
  mask = g->mask_keep != NULL && !g->mask_keep[at] ? (double)-INFINITY : mask;
  if ((g->causal && j > last) || (g->window > 0 && j <= last - g->window) ||
      (g->kv_valid != NULL && j >= g->kv_valid[b]))
    return (double)-INFINITY;
  for (int64_t d = 0; d < g->qk_dim; ++d)
    s += (double)q[d] * (double)k[d];
  s *= (double)g->scale;
  double cap = (double)g->softcap;
  if (cap > 0.0) {
    return g->cap_after_mask ? (isinf(mask) ? -cap : cap * tanh((s + mask) / cap))
                             : cap * tanh(s / cap) + mask;
  }
  return s + mask;
}

static void exact_attention(const cpu_attention_args *g, double *out) {
  double *p = kernel_memory((size_t)g->kv_rows * sizeof(double));
  for (int64_t r = 0; r < g->batch * g->heads * g->q_rows; ++r) {
    int64_t i = r % g->q_rows;
    int64_t h = r / g->q_rows % g->heads;
    int64_t b = r / g->q_rows / g->heads;
    int64_t kh = h / (g->heads / g->kv_heads);
    const float *k = g->k + b * g->k_stride.batch + kh * g->k_stride.head;
    const float *v = g->v + b * g->v_stride.batch + kh * g->v_stride.head;
    const float *q = g->q + b * g->q_stride.batch + h * g->q_stride.head + i * g->q_stride.row;
    double max = (double)-INFINITY;
    double sum = 0.0;
    for (int64_t j = 0; j < g->kv_rows; ++j) {
      p[j] = exact_score(g, q, k + j * g->k_stride.row, b, h, i, j);
      max = p[j] > max ? p[j] : max;
    }
    for (int64_t j = 0; j < g->kv_rows; ++j) {
      p[j] = isinf(max) ? 0.0 : exp(p[j] - max);
      sum += p[j];
    }
    double *o = out + ((b * g->q_rows + i) * g->heads + h) * g->v_dim;
    for (int64_t d = 0; d < g->v_dim; ++d) {
      o[d] = 0.0;
      for (int64_t j = 0; j < g->kv_rows && sum > 0.0; ++j)
        o[d] += p[j] / sum * (double)v[j * g->v_stride.row + d];
    }
  }
  free(p);
}

static void run(const cpu_exec *x, cpu_attention_args *g) {
  uint64_t bytes = 0;
  OPI_ASSERT(cpu_attention_workspace(cpu_team_size(x->team), g, &bytes));
  g->workspace = kernel_memory(bytes);
  cpu_attention(x, g);
  free(g->workspace);
}

static void test_close_to_double_and_equal_on_every_set(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int c = 0; c < N_SETTINGS; ++c) {
    const setting *s = &settings[c];
    const int64_t size = s->batch * s->q_rows * s->heads * s->v_dim;
    tensors t = make(s);
    float *out = kernel_floats(size);
    float *first = kernel_floats(size);
    double *exact = kernel_memory((size_t)size * sizeof(double));
    char what[32];
    snprintf(what, sizeof what, "setting %d", c);
    for (int i = 0; i < n; ++i) {
      cpu_attention_args g = arguments(s, &t, i == 0 ? first : out);
      memset(g.out, 0xff, (size_t)size * sizeof(float));
      run(&execs[i].x, &g);
      if (i == 0) {
        exact_attention(&g, exact);
        kernel_close(first, exact, size, 2e-6, what, execs[i].name);
      } else {
        kernel_same(out, first, size, what, execs[i].name);
      }
    }
    drop(&t);
    free(out), free(first), free(exact);
  }
}

/* Query row r of all batches, computed alone into out, has the bits of that row of whole. */
static bool row_is_of_the_whole(const setting *s, const tensors *t, const kernel_exec *exec,
                                int64_t r, float *out, const float *whole) {
  cpu_attention_args one = arguments(s, t, out);
  one.q_rows = 1;
  one.q += r * one.q_stride.row;
  one.out += r * one.out_stride.row;
  one.causal_offset += r;
  one.mask_add = one.mask_add == NULL ? NULL : one.mask_add + r * one.mask_stride[2];
  one.mask_keep = one.mask_keep == NULL ? NULL : one.mask_keep + r * one.mask_stride[2];
  run(&exec->x, &one);
  bool same = true;
  for (int64_t b = 0; b < s->batch && same; ++b) {
    const int64_t at = b * one.out_stride.batch + r * one.out_stride.row;
    same = kernel_same(out + at, whole + at, one.out_stride.row, "one row", exec->name);
  }
  return same;
}

/* Each query row alone, as a decoder computes it, gives the row of the whole. */
static void test_a_row_alone_has_the_same_bits(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int c = 1; c < N_SETTINGS; ++c) {
    const setting *s = &settings[c];
    const int64_t size = s->batch * s->q_rows * s->heads * s->v_dim;
    tensors t = make(s);
    float *whole = kernel_floats(size);
    float *out = kernel_floats(size);
    bool same = true;
    for (int i = 0; i < n && same; ++i) {
      cpu_attention_args g = arguments(s, &t, whole);
      run(&execs[i].x, &g);
      for (int64_t r = 0; r < s->q_rows && same; r += r < 26 ? 1 : 11)
        same = row_is_of_the_whole(s, &t, &execs[i], r, out, whole);
    }
    drop(&t);
    free(whole), free(out);
  }
}

/* [batch, head, row, dim] gives what [batch, row, head, dim] gives, masks by odd strides too. */
static void test_both_layouts(void) {
  const setting *s = &settings[5];
  const int64_t size = s->q_rows * s->heads * s->v_dim;
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  tensors t = make(s);
  float *turned = kernel_floats(s->q_rows * s->heads * s->qk_dim);
  float *wide = kernel_floats(2 * s->q_rows * s->kv_rows);
  float *out[2] = {kernel_floats(size), kernel_floats(size)};
  for (int64_t i = 0; i < s->q_rows * s->heads; ++i) {
    memcpy(turned + (i % s->heads * s->q_rows + i / s->heads) * s->qk_dim, t.q + i * s->qk_dim,
           (size_t)s->qk_dim * sizeof(float));
  }
  for (int64_t i = 0; i < s->q_rows * s->kv_rows; ++i)
    wide[2 * i] = t.mask[i];
  for (int i = 0; i < n; ++i) {
    cpu_attention_args g = arguments(s, &t, out[0]);
    run(&execs[i].x, &g);
    g.q = turned;
    g.q_stride = (cpu_attention_strides){0, s->q_rows * s->qk_dim, s->qk_dim};
    g.out = out[1];
    g.mask_add = wide;
    g.mask_stride[2] = 2 * s->kv_rows;
    g.mask_stride[3] = 2;
    run(&execs[i].x, &g);
    kernel_same(out[1], out[0], size, "layout", execs[i].name);
  }
  drop(&t);
  free(turned), free(wide), free(out[0]), free(out[1]);
}

static void test_rows_that_see_nothing(void) {
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  const setting *s = &settings[11]; /* causal with a negative offset */
  const int64_t row = s->heads * s->v_dim;
  tensors t = make(s);
  float *out = kernel_floats(s->q_rows * row);
  for (int i = 0; i < n; ++i) {
    for (int nan_wanted = 0; nan_wanted < 2; ++nan_wanted) {
      cpu_attention_args g = arguments(s, &t, out);
      g.masked_row = nan_wanted ? CPU_MASKED_ROW_NAN : CPU_MASKED_ROW_ZERO;
      run(&execs[i].x, &g);
      for (int64_t c = 0; c < 5 * row; ++c)
        OPI_ASSERT(nan_wanted ? isnan(out[c]) : out[c] == 0.0f);
      OPI_ASSERT(isfinite(out[5 * row]));
    }
    /* no keys at all */
    cpu_attention_args g = arguments(s, &t, out);
    g.kv_rows = 0;
    run(&execs[i].x, &g);
    OPI_ASSERT(out[0] == 0.0f && out[s->q_rows * row - 1] == 0.0f);
    /* a NaN in one query stays in its row and head */
    float kept = t.q[(7 * s->heads + 1) * s->qk_dim];
    t.q[(7 * s->heads + 1) * s->qk_dim] = NAN;
    g = arguments(s, &t, out);
    run(&execs[i].x, &g);
    OPI_ASSERT(isnan(out[7 * row + s->v_dim]) && !isnan(out[7 * row]) && !isnan(out[8 * row]));
    t.q[(7 * s->heads + 1) * s->qk_dim] = kept;
  }
  drop(&t);
  free(out);
}

/* Sequences of other lengths: each gives what it gives alone; few rows and many. */
static void test_offsets_of_their_own(void) {
  static const int64_t offsets[2] = {40, 275};
  kernel_exec execs[KERNEL_EXECS];
  int n = kernel_execs(execs);
  for (int64_t rows = 1; rows <= 31; rows += 15) {
    const setting s = {2, 6, 2, rows, 300, 32, 64, true, 0, 50, 0.0f, false, 0, true};
    const int64_t size = s.batch * s.q_rows * s.heads * s.v_dim;
    tensors t = make(&s);
    float *out = kernel_floats(size), *alone = kernel_floats(size);
    for (int64_t b = 0; b < 2; ++b)
      t.valid[b] = offsets[b] + rows < 300 ? offsets[b] + rows : 300;
    for (int i = 0; i < n; ++i) {
      cpu_attention_args g = arguments(&s, &t, out);
      g.offsets = offsets;
      run(&execs[i].x, &g);
      for (int64_t b = 0; b < 2; ++b) {
        cpu_attention_args one = arguments(&s, &t, alone + b * g.out_stride.batch);
        one.batch = 1;
        one.q += b * g.q_stride.batch;
        one.k += b * g.k_stride.batch;
        one.v += b * g.v_stride.batch;
        one.kv_valid = &t.valid[b];
        one.causal_offset = offsets[b];
        run(&execs[i].x, &one);
      }
      kernel_same(out, alone, size, "offsets", execs[i].name);
    }
    drop(&t);
    free(out), free(alone);
  }
}

OPI_TEST_MAIN("kernel_attention", OPI_TEST(test_close_to_double_and_equal_on_every_set),
              OPI_TEST(test_a_row_alone_has_the_same_bits), OPI_TEST(test_offsets_of_their_own),
              OPI_TEST(test_both_layouts), OPI_TEST(test_rows_that_see_nothing))
