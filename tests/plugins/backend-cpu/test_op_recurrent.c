/* SPDX-License-Identifier: Apache-2.0 */
/* opipe.LSTM, GRU and RNN against the operators' text in plain loops, with everything that can be
 * given: fp32 on fast and on reference kernels, fp64; each row alone gives the bits that it gives
 * among others, whatever the number of threads.
 */
#include "recurrent_layer.h"

static void run(const layer *l, const char *options, uint32_t threads, uint32_t dtype, int first,
                int rows, results *out) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_graph g;
  bt_open(&b);
  make_layer(&g, l, dtype, first, rows, out);
  OPI_ASSERT_OK(bt_device(&b, options, threads, 0, &device, &err), &err);
  OPI_ASSERT_OK(bt_run_once(b.table, device, &g, OPIPE_COMPILE_POISON, &err), &err);
  b.table->device_close(device);
  bt_close(&b);
}

static void check_layer(const layer *l) {
  static results all, other;
  draw_all();
  plain(l);
  run(l, NULL, 1, OPIPE_DOUBLE, 0, ROWS, &other);
  check_results(l, &other, OPIPE_DOUBLE);
  run(l, "kernels=reference", 2, OPIPE_FLOAT, 0, ROWS, &other);
  check_results(l, &other, OPIPE_FLOAT);
  run(l, NULL, 1, OPIPE_FLOAT, 0, ROWS, &all);
  check_results(l, &all, OPIPE_FLOAT);
  run(l, "kernels=portable", 2, OPIPE_FLOAT, 0, ROWS, &other);
  OPI_ASSERT(memcmp(&all, &other, sizeof all) == 0);
  for (int b = 0; b < ROWS; b += 3) {
    run(l, NULL, 1, OPIPE_FLOAT, b, 1, &other);
    check_row(&other, &all, b);
  }
}

static void test_lstm(void) {
  for (size_t i = 0; i < sizeof lstm_layers / sizeof lstm_layers[0]; ++i)
    check_layer(&lstm_layers[i]);
}

static void test_gru(void) {
  for (size_t i = 0; i < sizeof gru_layers / sizeof gru_layers[0]; ++i)
    check_layer(&gru_layers[i]);
}

static void test_rnn(void) {
  for (size_t i = 0; i < sizeof rnn_layers / sizeof rnn_layers[0]; ++i)
    check_layer(&rnn_layers[i]);
}

/* More steps than there are: an error of the data, with row and both numbers. */
static void test_a_length_that_is_none(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  opipe_device *device = NULL;
  bt_backend b;
  bt_graph g;
  bt_open(&b);
  make_wrong_length(&g);
  OPI_ASSERT_OK(bt_device(&b, NULL, 1, 0, &device, &err), &err);
  OPI_ASSERT_ERROR(bt_run_once(b.table, device, &g, 0, &err), OPIPE_E_INVALID, &err,
                   "row 1 has 2 steps, the layer 1");
  b.table->device_close(device);
  bt_close(&b);
}

OPI_TEST_MAIN("recurrent layers", OPI_TEST(test_lstm), OPI_TEST(test_gru), OPI_TEST(test_rnn),
              OPI_TEST(test_a_length_that_is_none))
