/* SPDX-License-Identifier: Apache-2.0 */
/* Weight files that change under a model: whatever reads them next refuses, naming file and sizes;
 * a session that uses them in place leaves the fault to the host's handler; one opened with
 * mapped=0 goes on with the same bits.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/abi/host_kit.h"

static const int64_t ids[16] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
static const int64_t shape[2] = {1, 8}, other_shape[2] = {1, 5};
enum { ELEMS_MOST = 1 << 16, HANDLED = 42 };
static size_t n_elems; /* of the last result */

static bool copy(const char *from, const char *to) {
  size_t n = 0;
  char *bytes = opi_test_read_file(opi_test_source(from), &n);
  const bool done = bytes != NULL && opi_test_write_file(to, bytes, n);
  free(bytes);
  return done;
}

/* The model with its weights in a file of their own, below the test's folder. */
static const char *make_model(void) {
  static char path[300];
  (void)snprintf(path, sizeof path, "%s", opi_test_tmp("model.onnx"));
  return copy("tests/data/llama_external/model.onnx", path) &&
                 copy("tests/data/llama_external/model.onnx.data", opi_test_tmp("model.onnx.data"))
             ? path
             : NULL;
}

static opipe_status open_with(host_kit *k, const char *options) {
  const opipe_device_choice device = {.kind = "cpu", .options = options, .threads = 1};
  const opipe_plan_params plan = {.struct_size = sizeof plan,
                                  .n_stages = 2,
                                  .devices = &device,
                                  .n_devices = 1,
                                  .devices_stride = sizeof device};
  const opipe_dim dims[] = {{"batch", 1}, {"seq", 8}};
  const opipe_bind_options bind = {.struct_size = sizeof bind,
                                   .flags = OPIPE_BIND_DEFAULTS,
                                   .dims = dims,
                                   .n_dims = 2,
                                   .dims_stride = sizeof dims[0]};
  const opipe_load_params load = {.struct_size = sizeof load, .path = make_model()};
  OPI_ASSERT_FATAL(load.path != NULL);
  *k = (host_kit){.err = OPIPE_ERROR_INIT};
  opipe_status status = opipe_get_api(OPIPE_VIEW, &k->api, &k->err);
  if (status == OPIPE_OK)
    status = k->api->context_create(NULL, &k->context, &k->err);
  if (status == OPIPE_OK)
    status = k->api->model_load(k->context, &load, &k->model, &k->err);
  if (status == OPIPE_OK)
    status = k->api->model_bind(k->model, &bind, &k->bound, &k->err);
  if (status == OPIPE_OK)
    status = k->api->plan_make(k->bound, &plan, &k->plan, &k->err);
  return status == OPIPE_OK ? kit_open(k, NULL) : status;
}

static opipe_status run(host_kit *k, const int64_t *of, float *out) {
  const opipe_binding_io input = kit_ids(ids, of);
  opipe_request *request = NULL;
  opipe_tensor result;
  opipe_status status = kit_submit(k, &input, &request);
  if (status != OPIPE_OK)
    return status;
  status = k->api->request_wait(request, UINT64_C(30000000000), &k->err);
  if (status == OPIPE_OK)
    status = k->api->request_output(request, 0, &result, &k->err);
  if (status == OPIPE_OK && out != NULL) {
    n_elems = 1;
    for (int32_t d = 0; d < result.rank; ++d)
      n_elems *= (size_t)result.shape[d];
    OPI_ASSERT_FATAL(n_elems > 0 && n_elems <= ELEMS_MOST);
    memcpy(out, result.data, n_elems * sizeof *out);
  }
  k->api->request_release(request);
  return status;
}

static void refused(host_kit *k, const char *part) {
  opipe_model *bound = NULL;
  opipe_plan *plan = NULL;
  opipe_session *session = NULL;
  const opipe_bind_options bind = {.struct_size = sizeof bind, .flags = OPIPE_BIND_DEFAULTS};
  OPI_ASSERT_ERROR(k->api->model_bind(k->model, &bind, &bound, &k->err), OPIPE_E_INVALID, &k->err,
                   part);
  OPI_ASSERT(strstr(k->err.message, "model.onnx.data") != NULL);
  OPI_ASSERT_ERROR(k->api->plan_make(k->bound, NULL, &plan, &k->err), OPIPE_E_INVALID, &k->err,
                   part);
  OPI_ASSERT_ERROR(k->api->session_open(k->context, k->plan, NULL, &session, &k->err),
                   OPIPE_E_INVALID, &k->err, part);
}

static void test_a_session_with_copies_outlives_its_files(void) {
  host_kit k;
  static float before[ELEMS_MOST], after[ELEMS_MOST];
  OPI_ASSERT_OK_FATAL(open_with(&k, "mapped=0"), &k.err);
  OPI_ASSERT_OK(run(&k, shape, before), &k.err);
  for (uint32_t r = 0; r < 2; ++r) {
    opipe_memory_info measured = {.struct_size = sizeof measured}, predicted = measured;
    OPI_ASSERT_OK(k.api->session_memory(k.session, r, &measured, &k.err), &k.err);
    OPI_ASSERT_OK(k.api->plan_memory(k.plan, r, &predicted, &k.err), &k.err);
    OPI_ASSERT_INT(measured.mapped_bytes, 0);
    OPI_ASSERT_INT(predicted.mapped_bytes, 0);
    OPI_ASSERT_INT(measured.params_bytes, predicted.params_bytes);
    OPI_ASSERT_INT(measured.total_bytes, predicted.total_bytes);
  }
  OPI_ASSERT_INT(truncate(opi_test_tmp("model.onnx.data"), 100), 0);
  OPI_ASSERT_INT(truncate(opi_test_tmp("model.onnx"), 10), 0);
  OPI_ASSERT_OK(run(&k, shape, after), &k.err);
  OPI_ASSERT_BITS(after, before, n_elems, OPIPE_FLOAT);
  OPI_ASSERT_ERROR(run(&k, other_shape, NULL), OPIPE_E_INVALID, &k.err, "bytes now"); /* reads */
  OPI_ASSERT_OK(run(&k, shape, after), &k.err);
  OPI_ASSERT_BITS(after, before, n_elems, OPIPE_FLOAT);
  kit_close(&k);
}

static void test_a_file_cut_short_is_refused(void) {
  host_kit k;
  OPI_ASSERT_OK_FATAL(open_with(&k, NULL), &k.err);
  OPI_ASSERT_INT(truncate(opi_test_tmp("model.onnx.data"), 100), 0);
  refused(&k, "has 100 bytes now; it had 30720");
  kit_close(&k);
}

static void test_a_file_written_again_is_refused(void) {
  host_kit k;
  const struct timespec times[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
  OPI_ASSERT_OK_FATAL(open_with(&k, NULL), &k.err);
  OPI_ASSERT_INT(utimensat(AT_FDCWD, opi_test_tmp("model.onnx.data"), times, 0), 0);
  refused(&k, "was written");
  kit_close(&k);
}

static void test_a_file_removed_or_replaced_stays_what_it_was(void) {
  host_kit k;
  static float before[ELEMS_MOST], after[ELEMS_MOST];
  opipe_session *session = NULL;
  OPI_ASSERT_OK_FATAL(open_with(&k, NULL), &k.err);
  OPI_ASSERT_OK(run(&k, shape, before), &k.err);
  OPI_ASSERT(opi_test_write_file(opi_test_tmp("new"), "short", 5));
  OPI_ASSERT_INT(rename(opi_test_tmp("new"), opi_test_tmp("model.onnx.data")), 0);
  OPI_ASSERT_INT(unlink(opi_test_tmp("model.onnx")), 0);
  OPI_ASSERT_OK(k.api->session_open(k.context, k.plan, NULL, &session, &k.err), &k.err);
  OPI_ASSERT_OK(run(&k, shape, after), &k.err);
  OPI_ASSERT_OK(run(&k, other_shape, NULL), &k.err);
  OPI_ASSERT_BITS(after, before, n_elems, OPIPE_FLOAT);
  k.api->session_close(session);
  kit_close(&k);
}

/* ---- mapped: the host's handler ---- */

static void handle(int signal_number) {
  (void)signal_number;
  _exit(HANDLED);
}

/* In a process of its own, which ends in the handler. */
static void child(void) {
  host_kit k;
  const struct sigaction action = {.sa_handler = handle};
  if (open_with(&k, NULL) != OPIPE_OK || run(&k, shape, NULL) != OPIPE_OK)
    _exit(1);
  opipe_memory_info measured = {.struct_size = sizeof measured};
  if (k.api->session_memory(k.session, 0, &measured, &k.err) != OPIPE_OK ||
      measured.mapped_bytes == 0)
    _exit(2);
  if (sigaction(SIGBUS, &action, NULL) != 0 || truncate(opi_test_tmp("model.onnx.data"), 0) != 0)
    _exit(3);
  (void)run(&k, shape, NULL);
  _exit(4);
}

static void test_the_hosts_handler_gets_the_fault_of_a_rank(void) {
  int status = 0;
  (void)opi_test_tmpdir(); /* the parent's, who removes it */
  const pid_t pid = fork();
  OPI_ASSERT_FATAL(pid >= 0);
  if (pid == 0)
    child();
  OPI_ASSERT_INT(waitpid(pid, &status, 0), pid);
  OPI_ASSERT(WIFEXITED(status));
  OPI_ASSERT_INT(WEXITSTATUS(status), HANDLED);
}

static void test_the_option_has_two_values(void) {
  host_kit k;
  OPI_ASSERT_ERROR(open_with(&k, "mapped=2"), OPIPE_E_INVALID, &k.err, "mapped=2 (0 or 1)");
  kit_close(&k);
  OPI_ASSERT_OK(open_with(&k, "kernels=portable,mapped=1"), &k.err);
  kit_close(&k);
}

OPI_TEST_MAIN("mapped files", OPI_TEST(test_the_hosts_handler_gets_the_fault_of_a_rank),
              OPI_TEST(test_a_session_with_copies_outlives_its_files),
              OPI_TEST(test_a_file_cut_short_is_refused),
              OPI_TEST(test_a_file_written_again_is_refused),
              OPI_TEST(test_a_file_removed_or_replaced_stays_what_it_was),
              OPI_TEST(test_the_option_has_two_values))
