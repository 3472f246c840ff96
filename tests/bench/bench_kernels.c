/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix kernels against OpenBLAS and oneDNN, taking turns in slices of at most 30 ms in one
 * process.
 *
 * Weights come from memory, as in a model: as many copies in turn as make 160 MB (up to 16 rows) or
 * 40 MB. A library that is not installed has an empty column. Printed: GFLOP/s, best (95th
 * percentile of the samples) and median.
 *
 *   bench_kernels [--threads N] [--isa NAME] [--shape KxN] [--rows T] [--seconds S] [--no-peers] */
#include <dlfcn.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "plugins/backend-cpu/kernels/kernels.h"

enum { MOST_SAMPLES = 4096, PEERS = 2, CONTESTANTS = 1 + PEERS };

typedef void (*blas_sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                           const float *a, int lda, const float *b, int ldb, float beta, float *c,
                           int ldc);
typedef int (*dnnl_sgemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                          const float *a, int64_t lda, const float *b, int64_t ldb, float beta,
                          float *c, int64_t ldc);
typedef void (*set_threads)(int threads);

typedef struct options {
  int threads;
  cpu_isa isa;
  double seconds;  /* a contestant and row of the table */
  long k, n, rows; /* 0: all */
  bool peers;
} options;

typedef struct peers {
  blas_sgemm openblas;
  dnnl_sgemm onednn;
} peers;

typedef struct problem {
  long rows, k, n, copies;
  float *a, *c;
  float **b;     /* [copies] row-major */
  void **packed; /* [copies] */
  long next;     /* copy to use */
} problem;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Zeroed memory on huge pages where the system gives them; ends the program when there is none. */
static void *big_memory(size_t bytes) {
  void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    fprintf(stderr, "bench_kernels: no memory for %zu bytes\n", bytes);
    exit(1);
  }
  madvise(p, bytes, MADV_HUGEPAGE);
  return p;
}

static void fill(float *p, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    p[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
  }
}

static void problem_make(problem *p, const cpu_exec *x, const options *o) {
  const size_t elements = (size_t)p->k * (size_t)p->n;
  const double wanted = p->rows <= 16 ? 160e6 : 40e6;
  p->copies = 1 + (long)(wanted / (4.0 * (double)elements));
  p->a = big_memory((size_t)(p->rows * p->k) * 4);
  p->c = big_memory((size_t)(p->rows * p->n) * 4);
  p->b = big_memory((size_t)p->copies * sizeof *p->b);
  p->packed = big_memory((size_t)p->copies * sizeof *p->packed);
  fill(p->a, (size_t)(p->rows * p->k), 1);
  uint64_t bytes = 0;
  if (!cpu_pack_bytes(CPU_PACK_F32_PANEL, p->k, p->n, &bytes))
    exit(1);
  for (long i = 0; i < p->copies; ++i) {
    p->b[i] = i == 0 || o->peers ? big_memory(elements * 4) : p->b[0];
    if (i == 0)
      fill(p->b[0], elements, 2);
    else if (o->peers)
      memcpy(p->b[i], p->b[0], elements * 4);
    p->packed[i] = big_memory(bytes);
    cpu_pack_source s = {p->b[i], CPU_F32, p->k, p->n, p->n, 1, 0};
    cpu_pack(x, CPU_PACK_F32_PANEL, &s, p->packed[i]);
  }
}

static void problem_free(problem *p, const options *o) {
  uint64_t bytes = 0;
  (void)cpu_pack_bytes(CPU_PACK_F32_PANEL, p->k, p->n, &bytes);
  for (long i = 0; i < p->copies; ++i) {
    if (i == 0 || o->peers)
      munmap(p->b[i], (size_t)(p->k * p->n) * 4);
    munmap(p->packed[i], bytes);
  }
  munmap(p->a, (size_t)(p->rows * p->k) * 4);
  munmap(p->c, (size_t)(p->rows * p->n) * 4);
  munmap(p->b, (size_t)p->copies * sizeof *p->b);
  munmap(p->packed, (size_t)p->copies * sizeof *p->packed);
}

static void multiply(int contestant, const problem *p, const cpu_exec *x, const peers *peer) {
  const float *b = p->b[p->next];
  if (contestant == 0) {
    cpu_matmul_args g = {.m = p->rows,
                         .a = p->a,
                         .a_stride = p->k,
                         .b = {CPU_PACK_F32_PANEL, p->k, p->n, p->packed[p->next]},
                         .c = p->c,
                         .c_stride = p->n};
    cpu_matmul(x, &g);
  } else if (contestant == 1) {
    peer->openblas(101, 111, 111, (int)p->rows, (int)p->n, (int)p->k, 1.0f, p->a, (int)p->k, b,
                   (int)p->n, 0.0f, p->c, (int)p->n);
  } else {
    peer->onednn('N', 'N', p->rows, p->n, p->k, 1.0f, p->a, p->k, b, p->n, 0.0f, p->c, p->n);
  }
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Lets the other contestants' idle threads stop spinning on the cores. */
static void settle(void) {
  const struct timespec time = {.tv_sec = 0, .tv_nsec = 30000000};
  nanosleep(&time, NULL);
}

static void measure(const options *o, const cpu_exec *x, const peers *peer, problem *p) {
  static double sample[CONTESTANTS][MOST_SAMPLES];
  int count[CONTESTANTS] = {0};
  const bool present[CONTESTANTS] = {true, peer->openblas != NULL, peer->onednn != NULL};
  const double flops = 2.0 * (double)p->rows * (double)p->k * (double)p->n;
  int contestants = 0;
  for (int c = 0; c < CONTESTANTS; ++c)
    contestants += present[c];
  double end = now_s() + o->seconds * contestants;
  while (now_s() < end || count[0] < 3) {
    for (int c = 0; c < CONTESTANTS; ++c) {
      if (!present[c])
        continue;
      settle();
      double start = now_s();
      multiply(c, p, x, peer); /* the first after a change of hands is not counted */
      for (double t0 = now_s(), t1 = t0; t1 - start < 0.03 || t1 - t0 <= 0.0;) {
        t0 = now_s();
        p->next = (p->next + 1) % p->copies;
        multiply(c, p, x, peer);
        t1 = now_s();
        sample[c][count[c] % MOST_SAMPLES] = 1e-9 * flops / (t1 - t0);
        ++count[c];
      }
    }
  }
  printf("| %ld, %ldx%ld |", p->rows, p->k, p->n);
  double best0 = 0.0;
  for (int c = 0; c < CONTESTANTS; ++c) {
    int n = count[c] < MOST_SAMPLES ? count[c] : MOST_SAMPLES;
    if (n == 0) {
      printf(" |");
      continue;
    }
    qsort(sample[c], (size_t)n, sizeof(double), ascending);
    double best = sample[c][(n - 1) * 95 / 100];
    double median = sample[c][n / 2];
    best0 = c == 0 ? best : best0;
    printf(c == 0 ? " %.1f / %.1f |" : " %.1f / %.1f (%.2f) |", best, median, best0 / best);
  }
  printf("\n");
  fflush(stdout);
}

static void *symbol_of(const char *const *names, const char *symbol, void **out_library) {
  for (; *names != NULL; ++names) {
    void *library = dlopen(*names, RTLD_NOW | RTLD_LOCAL);
    void *found = library == NULL ? NULL : dlsym(library, symbol);
    if (found != NULL) {
      *out_library = library;
      return found;
    }
  }
  return NULL;
}

static void find_peers(const options *o, peers *out_peers) {
  static const char *const openblas[] = {"libopenblas.so.0", "libopenblas.so", NULL};
  static const char *const onednn[] = {"libdnnl.so.2", "libdnnl.so.3", "libdnnl.so", NULL};
  static const char *const openmp[] = {"libgomp.so.1", NULL};
  void *library = NULL;
  void *symbol = symbol_of(openblas, "cblas_sgemm", &library);
  memcpy(&out_peers->openblas, &symbol, sizeof symbol);
  if (symbol != NULL) {
    set_threads set = NULL;
    void *setter = dlsym(library, "openblas_set_num_threads");
    memcpy(&set, &setter, sizeof setter);
    if (set != NULL)
      set(o->threads);
  }
  symbol = symbol_of(onednn, "dnnl_sgemm", &library);
  memcpy(&out_peers->onednn, &symbol, sizeof symbol);
  symbol = symbol_of(openmp, "omp_set_num_threads", &library);
  if (symbol != NULL) {
    set_threads set = NULL;
    memcpy(&set, &symbol, sizeof symbol);
    set(o->threads);
  }
}

static int read_options(int argc, char **argv, options *o) {
  static const struct option table[] = {{"threads", required_argument, NULL, 't'},
                                        {"isa", required_argument, NULL, 'i'},
                                        {"shape", required_argument, NULL, 's'},
                                        {"rows", required_argument, NULL, 'r'},
                                        {"seconds", required_argument, NULL, 'd'},
                                        {"no-peers", no_argument, NULL, 'n'},
                                        {NULL, 0, NULL, 0}};
  for (int c = 0; (c = getopt_long(argc, argv, "", table, NULL)) != -1;) {
    if (c == 't') {
      o->threads = (int)strtol(optarg, NULL, 10);
    } else if (c == 'i') {
      if (!cpu_isa_parse(optarg, &o->isa))
        return 1;
    } else if (c == 's') {
      if (sscanf(optarg, "%ldx%ld", &o->k, &o->n) != 2)
        return 1;
    } else if (c == 'r') {
      o->rows = strtol(optarg, NULL, 10);
    } else if (c == 'd') {
      o->seconds = strtod(optarg, NULL);
    } else if (c == 'n') {
      o->peers = false;
    } else {
      return 1;
    }
  }
  return optind != argc;
}

int main(int argc, char **argv) {
  static const long shapes[][2] = {{768, 768}, {768, 2304}, {768, 3072}, {3072, 768}, {768, 50257}};
  static const long rows[] = {1, 5, 16, 128, 512};
  options o = {.threads = 1, .isa = cpu_isa_detect(), .seconds = 1.0, .peers = true};
  if (read_options(argc, argv, &o) != 0) {
    fprintf(
        stderr,
        "usage: bench_kernels [--threads N] [--isa NAME] [--shape KxN] [--rows T] [--seconds S] "
        "[--no-peers]\n");
    return 2;
  }
  cpu_exec x = {.kernels = cpu_kernels_get(o.isa)};
  size_t team_bytes = cpu_team_bytes(o.threads);
  cpu_team_options team = {.threads = o.threads, .spin_ns = CPU_TEAM_SPIN_NS};
  if (x.kernels == NULL || team_bytes == 0 ||
      cpu_team_start(big_memory(team_bytes), &team, &x.team) != 0) {
    fprintf(stderr, "bench_kernels: no %s here, or not %d threads\n", cpu_isa_name(o.isa),
            o.threads);
    return 1;
  }
  peers peer = {NULL, NULL};
  if (o.peers)
    find_peers(&o, &peer);
  printf("GFLOP/s best / median, %s, %d thread(s); in brackets ours : theirs, best\n",
         cpu_isa_name(o.isa), o.threads);
  printf("| rows, KxN | ours | OpenBLAS | oneDNN sgemm |\n|---|---|---|---|\n");
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; ++s) {
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r) {
      problem p = {.rows = rows[r], .k = shapes[s][0], .n = shapes[s][1]};
      if (o.k != 0 && s > 0)
        continue;
      p.k = o.k != 0 ? o.k : p.k;
      p.n = o.k != 0 ? o.n : p.n;
      if (o.rows != 0 && r > 0)
        continue;
      p.rows = o.rows != 0 ? o.rows : p.rows;
      problem_make(&p, &x, &o);
      measure(&o, &x, &peer, &p);
      problem_free(&p, &o);
    }
  }
  cpu_team_stop(x.team);
  return 0;
}
