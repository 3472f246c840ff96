/* SPDX-License-Identifier: Apache-2.0 */
/* Attention, normalisation, softmax and activations at the shapes of transformers: best (5th
 * percentile of the time) and median, as microseconds and as a rate: GFLOP/s of the full score
 * matrix for attention, GB/s of what is read and written for the others.
 *
 *   bench_kernels_fused [--threads N] [--isa NAME] [--seconds S] */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "plugins/backend-cpu/kernels/kernels.h"

enum { MOST_SAMPLES = 4096 };

typedef struct options {
  int threads;
  cpu_isa isa;
  double seconds;
} options;

typedef struct job {
  const cpu_exec *x;
  void (*run)(const struct job *job);
  const void *args;
} job;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *memory(size_t bytes) {
  void *p = NULL;
  if (posix_memalign(&p, CPU_TEAM_ALIGN_BYTES, bytes) != 0) {
    fprintf(stderr, "bench_kernels_fused: no memory for %zu bytes\n", bytes);
    exit(1);
  }
  memset(p, 0, bytes);
  return p;
}

static float *floats(int64_t n) {
  float *p = memory((size_t)n * sizeof(float));
  uint32_t seed = 1;
  for (int64_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    p[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
  }
  return p;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

/* `amount`: flops or bytes, in units of 1e9 a second. */
static void measure(const options *o, const job *j, const char *name, double amount) {
  static double sample[MOST_SAMPLES];
  int n = 0;
  j->run(j);
  for (double end = now_s() + o->seconds; n < MOST_SAMPLES && (n < 5 || now_s() < end); ++n) {
    double start = now_s();
    j->run(j);
    sample[n] = now_s() - start;
  }
  qsort(sample, (size_t)n, sizeof *sample, ascending);
  double best = sample[n / 20];
  double median = sample[n / 2];
  printf("| %s | %.1f / %.1f | %.1f / %.1f |\n", name, 1e6 * best, 1e6 * median,
         1e-9 * amount / best, 1e-9 * amount / median);
  fflush(stdout);
}

static void run_attention(const job *j) {
  cpu_attention(j->x, j->args);
}

static void bench_attention(const options *o, const cpu_exec *x, int64_t heads, int64_t q_rows,
                            int64_t kv_rows, bool causal) {
  enum { DIM = 64 };
  uint64_t bytes = 0;
  const cpu_attention_args sizes = {.batch = 1,
                                    .heads = heads,
                                    .kv_heads = heads,
                                    .q_rows = q_rows,
                                    .kv_rows = kv_rows,
                                    .qk_dim = DIM,
                                    .v_dim = DIM};
  if (!cpu_attention_workspace(o->threads, &sizes, &bytes))
    return;
  float *q = floats(heads * q_rows * DIM);
  float *k = floats(heads * kv_rows * DIM);
  float *v = floats(heads * kv_rows * DIM);
  float *out = floats(heads * q_rows * DIM);
  const cpu_attention_strides q_stride = {0, DIM, heads * DIM};
  cpu_attention_args g = {.batch = 1,
                          .heads = heads,
                          .kv_heads = heads,
                          .q_rows = q_rows,
                          .kv_rows = kv_rows,
                          .qk_dim = DIM,
                          .v_dim = DIM,
                          .q = q,
                          .k = k,
                          .v = v,
                          .q_stride = q_stride,
                          .k_stride = q_stride,
                          .v_stride = q_stride,
                          .out = out,
                          .out_stride = q_stride,
                          .scale = 0.125f,
                          .causal = causal,
                          .causal_offset = kv_rows - q_rows,
                          .workspace = memory(bytes)};
  job j = {x, run_attention, &g};
  char name[64];
  snprintf(name, sizeof name, "attention %ld heads, %ld x %ld%s", (long)heads, (long)q_rows,
           (long)kv_rows, causal ? ", causal" : "");
  measure(o, &j, name, 4.0 * (double)(heads * q_rows * kv_rows * DIM));
  free(q), free(k), free(v), free(out), free(g.workspace);
}

static void run_norm(const job *j) {
  cpu_norm(j->x, j->args);
}

static void run_softmax(const job *j) {
  cpu_softmax(j->x, j->args);
}

static void run_bias(const job *j) {
  cpu_bias_activation(j->x, j->args);
}

static void bench_rows(const options *o, const cpu_exec *x, int64_t rows, int64_t columns) {
  float *in = floats(rows * columns);
  float *out = floats(rows * columns);
  float *vectors = floats(2 * columns);
  const double bytes = 8.0 * (double)(rows * columns);
  char name[64];
  cpu_norm_args norm = {.rows = rows,
                        .columns = columns,
                        .epsilon = 1e-5f,
                        .in = in,
                        .in_row = columns,
                        .scale = vectors,
                        .bias = vectors + columns,
                        .out = out,
                        .out_row = columns};
  job j = {x, run_norm, &norm};
  snprintf(name, sizeof name, "layer norm %ld x %ld", (long)rows, (long)columns);
  measure(o, &j, name, bytes);
  cpu_softmax_args softmax = {rows, columns, false, in, columns, out, columns};
  j = (job){x, run_softmax, &softmax};
  snprintf(name, sizeof name, "softmax %ld x %ld", (long)rows, (long)columns);
  measure(o, &j, name, bytes);
  static const struct {
    const char *name;
    cpu_activation activation;
  } forms[] = {{"copy", CPU_ACT_NONE},
               {"bias + gelu erf", CPU_ACT_GELU_ERF},
               {"bias + gelu tanh", CPU_ACT_GELU_TANH},
               {"bias + silu", CPU_ACT_SILU},
               {"bias + tanh", CPU_ACT_TANH}};
  for (size_t i = 0; i < sizeof forms / sizeof forms[0]; ++i) {
    cpu_bias_args bias = {.rows = rows,
                          .columns = columns,
                          .in = in,
                          .in_row = columns,
                          .bias = i == 0 ? NULL : vectors,
                          .activation = forms[i].activation,
                          .out = out,
                          .out_row = columns};
    j = (job){x, run_bias, &bias};
    snprintf(name, sizeof name, "%s %ld x %ld", forms[i].name, (long)rows, (long)columns);
    measure(o, &j, name, bytes);
  }
  free(in), free(out), free(vectors);
}

int main(int argc, char **argv) {
  static const struct option table[] = {{"threads", required_argument, NULL, 't'},
                                        {"isa", required_argument, NULL, 'i'},
                                        {"seconds", required_argument, NULL, 'd'},
                                        {NULL, 0, NULL, 0}};
  options o = {.threads = 1, .isa = cpu_isa_detect(), .seconds = 0.3};
  for (int c = 0; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
    if (c == 't') {
      o.threads = (int)strtol(optarg, NULL, 10);
    } else if (c == 'd') {
      o.seconds = strtod(optarg, NULL);
    } else if (c != 'i' || !cpu_isa_parse(optarg, &o.isa)) {
      fprintf(stderr, "usage: bench_kernels_fused [--threads N] [--isa NAME] [--seconds S]\n");
      return 2;
    }
  }
  cpu_exec x = {.kernels = cpu_kernels_get(o.isa)};
  cpu_team_options team = {.threads = o.threads, .spin_ns = CPU_TEAM_SPIN_NS};
  if (x.kernels == NULL || cpu_team_bytes(o.threads) == 0 ||
      cpu_team_start(memory(cpu_team_bytes(o.threads)), &team, &x.team) != 0) {
    fprintf(stderr, "bench_kernels_fused: no %s here, or not %d threads\n", cpu_isa_name(o.isa),
            o.threads);
    return 1;
  }
  printf("%s, %d thread(s), best / median\n| what | us | GFLOP/s or GB/s |\n|---|---|---|\n",
         cpu_isa_name(o.isa), o.threads);
  bench_attention(&o, &x, 12, 128, 128, false);
  bench_attention(&o, &x, 12, 128, 128, true);
  bench_attention(&o, &x, 12, 512, 512, false);
  bench_attention(&o, &x, 12, 512, 512, true);
  bench_attention(&o, &x, 12, 1024, 1024, true);
  bench_attention(&o, &x, 12, 1, 128, true);
  bench_attention(&o, &x, 12, 1, 1024, true);
  bench_rows(&o, &x, 128, 768);
  bench_rows(&o, &x, 128, 3072);
  bench_rows(&o, &x, 1024, 3072);
  cpu_team_stop(x.team);
  return 0;
}
