/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of LSTM, GRU and RNN against central differences: every input, both directions and
 * layouts, rows of several lengths (none among them), every activation.
 */
#include "tests/loader/gradient/jacobian.h"

static void test_lstm(void) {
  JAC_CASES("LSTM@14 d[3,2,2] d[1,12,2] d[1,12,3] | hidden_size=3 -> y",
            "LSTM@14 d[3,2,2] d[1,12,2] d[1,12,3] d[1,24] - d[1,2,3] d[1,2,3] d[1,9] -> yyy",
            "LSTM@14 d[3,2,2] d[1,12,2] d[1,12,3] d[1,24] n{2,3} d[1,2,3] d[1,2,3] d[1,9] | "
            "direction=$reverse -> yyy",
            "LSTM@14 d[3,3,1] d[2,8,1] d[2,8,2] d[2,16] n{1,3,0} d[2,3,2] d[2,3,2] d[2,6] | "
            "direction=$bidirectional -> yyy",
            "LSTM@14 d[2,3,2] d[2,8,2] d[2,8,2] d[2,16] - d[2,2,2] d[2,2,2] | "
            "direction=$bidirectional layout=1 -> yyy",
            "LSTM@14 d[3,2,2] d[1,8,2] d[1,8,2] - - - - d[1,6] | input_forget=1 clip=0.4f -> y",
            "LSTM@7 d[3,2,2] d[1,8,2] d[1,8,2] -> -y-", "LSTM@7 d[3,2,2] d[1,8,2] d[1,8,2] -> nny",
            "LSTM@7 d[3,2,2] c[1,8,2] c[1,8,2] -> y", "LSTM@7 c[3,2,2] c[1,8,2] d[1,8,2] -> y");
}

static void test_gru(void) {
  JAC_CASES(
      "GRU@14 d[3,2,2] d[1,9,2] d[1,9,3] -> y",
      "GRU@14 d[3,2,2] d[1,9,2] d[1,9,3] d[1,18] - d[1,2,3] -> yy",
      "GRU@14 d[3,2,2] d[1,9,2] d[1,9,3] d[1,18] n{2,3} d[1,2,3] | direction=$reverse -> yy",
      "GRU@14 d[3,2,2] d[1,9,2] d[1,9,3] d[1,18] - d[1,2,3] | linear_before_reset=1 -> yy",
      "GRU@14 d[3,3,1] d[2,6,1] d[2,6,2] d[2,12] n{1,3,0} d[2,3,2] | linear_before_reset=1 "
      "direction=$bidirectional -> yy",
      "GRU@14 d[3,3,1] d[2,6,1] d[2,6,2] d[2,12] n{1,3,0} d[2,3,2] | direction=$bidirectional "
      "clip=0.5f -> yy",
      "GRU@14 d[2,3,2] d[1,6,2] d[1,6,2] - - d[2,1,2] | layout=1 linear_before_reset=1 -> yy",
      "GRU@7 d[3,2,2] d[1,6,2] c[1,6,2] -> -y", "GRU@7 c[3,2,2] c[1,6,2] d[1,6,2] -> y");
}

static void test_rnn(void) {
  JAC_CASES("RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] d[1,6] - d[1,2,3] -> yy",
            "RNN@14 d[3,2,2] d[2,3,2] d[2,3,3] d[2,6] n{3,1} d[2,2,3] | "
            "direction=$bidirectional -> yy",
            "RNN@14 d[2,3,2] d[1,3,2] d[1,3,3] | direction=$reverse layout=1 -> yy",
            "RNN@7 d[0,2,2] d[1,3,2] d[1,3,3] - - d[1,2,3] -> -y");
}

/* Each in every place of a gate; numbers go to those that have one. */
static void test_activations(void) {
  JAC_CASES("RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@Relu -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@affine activation_alpha=f[0.5] "
            "activation_beta=f[0.1] -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@LeakyRelu -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@ThresholdedRelu "
            "activation_alpha=f[0.2] -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@ScaledTanh "
            "activation_alpha=f[1.5] activation_beta=f[0.7] -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@HardSigmoid -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@Elu activation_alpha=f[0.6] -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@Softsign -> y",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@Softplus -> y",
            "LSTM@14 d[3,2,2] d[1,8,2] d[1,8,2] | activations=@HardSigmoid,Softsign,Elu "
            "activation_alpha=f[0.3,0.9] activation_beta=f[0.4] -> yyy",
            "GRU@14 d[3,2,2] d[2,6,2] d[2,6,2] | direction=$bidirectional "
            "activations=@Sigmoid,ScaledTanh,Softsign,Tanh activation_alpha=f[1.2] "
            "activation_beta=f[0.8] -> yy",
            "RNN@14 d[3,2,2] d[1,3,2] d[1,3,3] | activations=@Cosine -> y !activation 'Cosine'");
}

OPI_TEST_MAIN("gradients of recurrent layers", OPI_TEST(test_lstm), OPI_TEST(test_gru),
              OPI_TEST(test_rnn), OPI_TEST(test_activations))
