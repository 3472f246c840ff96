/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=120 */
/* A 6 GiB model: its weights stay on disk. The data file is sparse, so that this needs no space;
 * time and resident memory of a load are measured in a process of its own.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/loader/wire/writer.h"

enum { N_LAYERS = 192, N_ROWS = 2048, N_COLUMNS = 4096 }; /* 192 x 32 MiB = 6 GiB of fp32 */
static const uint64_t layer_bytes = (uint64_t)N_ROWS * N_COLUMNS * 4;

static void make_sparse(const char *path, uint64_t n_bytes) {
  const int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  OPI_ASSERT_FATAL(fd >= 0);
  OPI_ASSERT_FATAL(ftruncate(fd, (off_t)n_bytes) == 0);
  OPI_ASSERT_FATAL(close(fd) == 0);
}

static bytes layers(void) {
  const int64_t dims[] = {N_ROWS, N_COLUMNS}, x_dims[] = {1, N_ROWS};
  bytes graph = {0};
  char in[64], out[64], name[64], offset[32];
  w_sub(&graph, 11, w_value("h0", OPIPE_FLOAT, x_dims, 2));
  for (int i = 0; i < N_LAYERS; ++i) {
    (void)snprintf(in, sizeof(in), "h%d w%d", i, i);
    (void)snprintf(out, sizeof(out), "h%d", i + 1);
    (void)snprintf(name, sizeof(name), "w%d", i);
    (void)snprintf(offset, sizeof(offset), "%llu", (unsigned long long)(layer_bytes * (uint64_t)i));
    w_sub(&graph, 1, w_node("MatMul", NULL, NULL, in, out));
    w_sub(&graph, 5, w_external(name, OPIPE_FLOAT, dims, 2, "weights.bin", offset, NULL));
  }
  w_sub(&graph, 12, w_value(out, OPIPE_FLOAT, x_dims, 2));
  return w_model(graph, 8);
}

/* Peak resident memory of this process in KiB, 0: unknown. */
static uint64_t peak_kib(void) {
  FILE *file = fopen("/proc/self/status", "re");
  char line[256];
  unsigned long long kib = 0;
  while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
    if (sscanf(line, "VmHWM: %llu", &kib) == 1)
      break;
  }
  if (file != NULL)
    (void)fclose(file);
  return kib;
}

static double seconds(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

typedef struct measured {
  double seconds;
  uint64_t peak_kib;
  uint64_t external_bytes;
  int32_t status;
} measured;

/* Loads in a child, so that what this process touched before does not count. */
static measured measure(const char *path) {
  measured m = {0};
  int ends[2];
  OPI_ASSERT_FATAL(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    const opi_load_params params = {.path = path};
    opi_model *model = NULL;
    const double start = seconds();
    m.status = opi_model_load(&params, &model, NULL);
    m.seconds = seconds() - start;
    m.peak_kib = peak_kib();
    if (model != NULL)
      m.external_bytes = model->external_bytes;
    opi_model_free(model);
    _exit(write(ends[1], &m, sizeof(m)) == sizeof(m) ? 0 : 1);
  }
  OPI_ASSERT_FATAL(child > 0);
  OPI_ASSERT_INT(read(ends[0], &m, sizeof(m)), sizeof(m));
  int status = 0;
  OPI_ASSERT_INT(waitpid(child, &status, 0), child);
  (void)close(ends[0]);
  (void)close(ends[1]);
  return m;
}

static void test_external_weights_stay_on_disk(void) {
  const char *path = opi_test_tmp("model.onnx");
  make_sparse(opi_test_tmp("weights.bin"), layer_bytes * N_LAYERS);
  bytes model = layers();
  OPI_ASSERT_FATAL(opi_test_write_file(path, model.data, model.n));
  free(model.data);
  const measured m = measure(path);
  OPI_ASSERT_INT(m.status, OPIPE_OK);
  OPI_ASSERT(m.external_bytes == layer_bytes * N_LAYERS);
  (void)printf("6 GiB of external weights: %.4f s, %llu KiB resident ", m.seconds,
               (unsigned long long)m.peak_kib);
  OPI_ASSERT(m.seconds < 1.0);
  OPI_ASSERT(m.peak_kib > 0 && m.peak_kib < 150 * 1024);
}

/* The same with the weights inside: 1.5 GiB of raw_data, written as a hole. */
static void test_embedded_weights_stay_on_disk(void) {
  enum { N = 48 };
  const char *path = opi_test_tmp("embedded.onnx");
  const int64_t dims[] = {N_ROWS, N_COLUMNS};
  /* graph = N tensors, each a head and a hole; lengths are known beforehand. */
  bytes heads[N], graph_head = {0};
  uint64_t n_graph = 0;
  for (int i = 0; i < N; ++i) {
    char name[16];
    (void)snprintf(name, sizeof(name), "w%02d", i);
    bytes tensor = w_tensor(name, OPIPE_FLOAT, dims, 2, NULL, 0), length = {0};
    w_varint(&tensor, 9 << 3 | 2);
    w_varint(&tensor, layer_bytes);
    w_varint(&length, 5 << 3 | 2);
    w_varint(&length, tensor.n + layer_bytes);
    w_raw(&length, tensor.data, tensor.n);
    free(tensor.data);
    heads[i] = length;
    n_graph += length.n + layer_bytes;
  }
  bytes file = {0};
  w_num(&file, 1, 8);
  w_opset(&file, 8, "", 17);
  w_sub(&graph_head, 12, w_value("w00", OPIPE_FLOAT, dims, 2));
  w_varint(&file, 7 << 3 | 2);
  w_varint(&file, n_graph + graph_head.n);
  w_raw(&file, graph_head.data, graph_head.n);
  free(graph_head.data);
  make_sparse(path, file.n + n_graph);
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  OPI_ASSERT_FATAL(fd >= 0);
  uint64_t at = file.n;
  OPI_ASSERT_INT(pwrite(fd, file.data, file.n, 0), file.n);
  for (int i = 0; i < N; ++i) {
    OPI_ASSERT_INT(pwrite(fd, heads[i].data, heads[i].n, (off_t)at), heads[i].n);
    at += heads[i].n + layer_bytes;
    free(heads[i].data);
  }
  (void)close(fd);
  free(file.data);
  const measured m = measure(path);
  OPI_ASSERT_INT(m.status, OPIPE_OK);
  (void)printf("1.5 GiB of embedded weights: %.4f s, %llu KiB resident ", m.seconds,
               (unsigned long long)m.peak_kib);
  OPI_ASSERT(m.seconds < 1.0);
  OPI_ASSERT(m.peak_kib > 0 && m.peak_kib < 150 * 1024);
}

OPI_TEST_MAIN("large", OPI_TEST(test_external_weights_stay_on_disk),
              OPI_TEST(test_embedded_weights_stay_on_disk))
