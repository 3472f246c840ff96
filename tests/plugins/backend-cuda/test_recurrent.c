/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU and RNN on the device: products by the library's double, the rest by one kernel,
 * against the operators' text in plain loops, in every type; a row alone has the bits that it has
 * among others. */
#include "cuda_test.h"
#include "tests/plugins/backend-cpu/recurrent_layer.h"

static opipe_error err = OPIPE_ERROR_INIT;

/* Runs the graph; returns the status of an event behind the run. */
static opipe_status run_graph(const opipe_backend *t, opipe_device *device, const bt_graph *g,
                              uint32_t *out_steps) {
  bt_run run;
  opipe_event *event = NULL;
  OPI_ASSERT_OK_FATAL(bt_prepare(t, device, g, OPIPE_COMPILE_POISON, &run, &err), &err);
  OPI_ASSERT_OK(bt_step(t, g, &run, &err), &err);
  OPI_ASSERT_OK_FATAL(t->event_create(device, &event, &err), &err);
  OPI_ASSERT_OK(t->event_record(run.queue, event, &err), &err);
  const opipe_status status = t->event_sync(event, UINT64_C(60000000000), &err);
  *out_steps = run.info.n_kernels;
  t->event_destroy(event);
  bt_release(t, &run);
  return status;
}

static void run_layer(const opipe_backend *t, opipe_device *device, const layer *l, uint32_t dtype,
                      int first, int rows, results *out) {
  const bool resets = l->gates == 3 && !l->linear_before_reset;
  uint32_t n = 0;
  bt_graph g;
  make_layer(&g, l, dtype, first, rows, out);
  OPI_ASSERT_OK(run_graph(t, device, &g, &n), &err);
  OPI_ASSERT_INT(n, 2 + STEPS * (resets ? 4 : 2));
}

static void check_layers(const layer *layers, size_t n) {
  static const uint32_t types[] = {OPIPE_FLOAT, OPIPE_DOUBLE, OPIPE_FLOAT16, OPIPE_BFLOAT16};
  static results all, other;
  ct_backend b;
  opipe_device *device = NULL;
  CT_OPEN(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, "fallback=none", 1, 0, &device, &err), &err);
  draw_all();
  for (size_t i = 0; i < n; ++i) {
    plain(&layers[i]);
    for (size_t k = 1; k < sizeof types / sizeof types[0]; ++k) {
      run_layer(b.base.table, device, &layers[i], types[k], 0, ROWS, &other);
      check_results(&layers[i], &other, types[k]);
    }
    run_layer(b.base.table, device, &layers[i], OPIPE_FLOAT, 0, ROWS, &all);
    check_results(&layers[i], &all, OPIPE_FLOAT);
    run_layer(b.base.table, device, &layers[i], OPIPE_FLOAT, 3, 1, &other);
    check_row(&other, &all, 3);
  }
  b.base.table->device_close(device);
  bt_close(&b.base);
}

static void test_lstm(void) {
  check_layers(lstm_layers, sizeof lstm_layers / sizeof lstm_layers[0]);
}

static void test_gru(void) {
  check_layers(gru_layers, sizeof gru_layers / sizeof gru_layers[0]);
}

static void test_rnn(void) {
  check_layers(rnn_layers, sizeof rnn_layers / sizeof rnn_layers[0]);
}

/* An error of the data, with both numbers; nothing is read or written out of place. */
static void test_a_length_that_is_none(void) {
  ct_backend b;
  opipe_device *device = NULL;
  bt_graph g;
  uint32_t n = 0;
  CT_OPEN(&b);
  OPI_ASSERT_OK_FATAL(bt_device(&b.base, NULL, 1, 0, &device, &err), &err);
  make_wrong_length(&g);
  OPI_ASSERT_ERROR(run_graph(b.base.table, device, &g, &n), OPIPE_E_INVALID, &err,
                   "node 'RNN': a row has 2 steps, the layer 1");
  b.base.table->device_close(device);
  bt_close(&b.base);
}

OPI_TEST_MAIN("cuda recurrent", OPI_TEST(test_lstm), OPI_TEST(test_gru), OPI_TEST(test_rnn),
              OPI_TEST(test_a_length_that_is_none))
