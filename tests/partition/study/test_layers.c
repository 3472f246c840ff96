/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles of layers: published files and their totals, files that must be refused, numbers between
 * those that are known, a written profile read again; described models and their published numbers
 * of parameters.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "partition/study/arch/arch.h"
#include "tests/support/support.h"

static opipe_error err = OPIPE_ERROR_INIT;

static opi_layers *read_file(const char *path, uint32_t samples) {
  opi_layers *layers = NULL;
  size_t n = 0;
  char *text = opi_test_read_file(path, &n);
  OPI_ASSERT_FATAL(text != NULL);
  OPI_ASSERT_OK_FATAL(
      opi_layers_read_text(path, text, n, samples, opi_allocator_system(), &layers, &err), &err);
  free(text);
  return layers;
}

/* ---- published files ---- */

static void test_totals_of_published_profiles(void) {
  static const struct {
    const char *file;
    uint32_t nodes, samples;
    double forward_ms, backward_ms, params;
  } rows[] = {{"dapple/profiling_results/bert-48-pbs-2.txt", 53, 2, 129.2, 214.6, 2.550e9},
              {"dapple/profiling_results/bert-24-pbs-6.txt", 29, 6, 193.8, 321.6, 1.341e9},
              {"dapple/profiling_results/xlnet-36-pbs-1.txt", 43, 1, 139.9, 177.8, 2.003e9},
              {"dapple/profiling_results/gnmt-16-pbs-64.txt", 96, 64, 90.3, 158.6, 1.163e9},
              {"dapple/profiling_results/amoeba-36-pbs-1.txt", 44, 1, 48.7, 119.4, 3.731e9},
              {"dapple/profiling_results/vgg-19-pbs-32.txt", 26, 32, 51.4, 96.2, 5.480e8},
              {"pipedream/profiles/vgg16.graph.txt", 41, 64, 251.9, 438.6, 5.534e8},
              {"pipedream/profiles/resnet50.graph.txt", 177, 64, 201.5, 260.9, 1.022e8},
              {"pipedream/profiles/gnmt_large.graph.txt", 96, 64, 182.6, 337.9, 1.111e9}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    char name[128];
    (void)snprintf(name, sizeof name, "oracles/partition/%s", rows[i].file);
    const char *path = opi_test_shared(name);
    if (path == NULL)
      return;
    opi_layers *layers = read_file(path, rows[i].samples);
    const opi_layer sum = opi_layers_sum(layers, 0, layers->n_layers, rows[i].samples);
    OPI_ASSERT_INT(layers->n_layers, rows[i].nodes);
    OPI_ASSERT(fabs(sum.forward_ns * 1e-6 - rows[i].forward_ms) <= 0.06);
    OPI_ASSERT(fabs(opi_layer_backward_ns(&sum) * 1e-6 - rows[i].backward_ms) <= 0.06);
    OPI_ASSERT(fabs((double)sum.param_bytes / rows[i].params - 1) <= 1e-3);
    OPI_ASSERT_INT(layers->at[layers->n_layers - 1].cut_bytes, 0);
    opi_layers_free(layers);
  }
}

/* An edge that skips layers crosses every cut under way; layers come in an order that edges
 * allow. */
static void test_order_and_cuts(void) {
  static const char text[] =
      "node7 -- last, (a) -- b -- forward_compute_time=1.5, backward_compute_time=3.000, "
      "activation_size=8.0, parameter_size=4.000, stage_id=0\n"
      "node2 -- first -- forward_compute_time=0.25, backward_compute_time=0, "
      "activation_size=[100.0; 28], parameter_size=0\r\n\n"
      "node9 -- middle -- forward_compute_time=1, backward_compute_time=1, activation_size=16, "
      "parameter_size=12\n"
      "\tnode2 -- node9\n  node9 -- node7\n\tnode2 -- node7";
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(
      opi_layers_read_text("x", text, sizeof text - 1, 4, opi_allocator_system(), &layers, &err),
      &err);
  OPI_ASSERT_INT(layers->n_layers, 3);
  OPI_ASSERT_STR(layers->names[0], "first");
  OPI_ASSERT_STR(layers->names[1], "middle");
  OPI_ASSERT_STR(layers->names[2], "last, (a) -- b");
  OPI_ASSERT_INT(layers->at[0].cut_bytes, 128);
  OPI_ASSERT_INT(layers->at[1].cut_bytes, 128 + 16);
  OPI_ASSERT_INT(layers->at[2].output_bytes, 8);
  OPI_ASSERT(layers->at[2].forward_ns == 1.5e6 && layers->at[2].input_ns == 1.5e6);
  OPI_ASSERT(!layers->halves);
  opi_layers_free(layers);
}

/* Bytes of a name that are not UTF-8 would make the JSON invalid. Found by
 * tests/fuzz/fuzz_layers.c. */
static void test_names_can_be_written(void) {
  static const char text[] =
      "node1 -- a\x91z -- forward_compute_time=1, backward_compute_time=1, "
      "activation_size=1, parameter_size=1\n";
  opi_layers *layers = NULL, *again = NULL;
  opi_text json;
  opi_text_init(&json, opi_allocator_system());
  OPI_ASSERT_OK_FATAL(
      opi_layers_read_text("x", text, sizeof text - 1, 1, opi_allocator_system(), &layers, &err),
      &err);
  OPI_ASSERT_STR(layers->names[0], "a?z");
  opi_layers_write(layers, &json);
  OPI_ASSERT_OK_FATAL(
      opi_layers_read_json("y", json.data, json.n, opi_allocator_system(), &again, &err), &err);
  OPI_ASSERT_STR(again->names[0], "a?z");
  opi_layers_free(again);
  opi_layers_free(layers);
  opi_text_release(&json);
}

static void test_wrong_files_are_refused(void) {
#define NODE(number, forward)                            \
  "node" number " -- a -- forward_compute_time=" forward \
  ", backward_compute_time=1, activation_size=1, parameter_size=1\n"
  static const struct {
    const char *text;
    const char *part;
  } rows[] = {
      {"", "no node"},
      {"hello", "line 1: neither a node nor an edge"},
      {"node1 -- a -- forward_compute_time=1, backward_compute_time=1, activation_size=1\n",
       "a field is missing"},
      {NODE("1", "1x"), "is not a number"},
      {NODE("1", "-1"), "is not a number"},
      {NODE("1", "1e400"), "is not a number"},
      {NODE("1", "nan"), "is not a number"},
      {NODE("1", "1e20"), "is not a number"},
      {NODE("1", ""), "is not a number"},
      {NODE("1", "[1; ]"), "is not a number"},
      {NODE("1", "1, forward_compute_time=2"), "is given twice"},
      {NODE("1", "1, what"), "without '='"},
      {NODE("1", "1") NODE("1", "2"), "node1 is defined in lines 1 and 2"},
      {NODE("1", "1") "node1 -- node2\n", "line 2: an edge names node2"},
      {NODE("1", "1") "node1 -- node1\n", "on a cycle"},
      {NODE("1", "1") NODE("2", "1") "node1 -- node2\n\tnode2 -- node1\n", "on a cycle"},
      {NODE("99999999999999999999", "1"), "neither a node nor an edge"},
      {"\tnode1 -- nodeX\n", "neither a node nor an edge"},
  };
#undef NODE
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_layers *layers = NULL;
    OPI_ASSERT_ERROR(opi_layers_read_text("x", rows[i].text, strlen(rows[i].text), 1,
                                          opi_allocator_system(), &layers, &err),
                     OPIPE_E_INVALID, &err, rows[i].part);
  }
}

/* ---- the value ---- */

static opi_layers *make_two(void) {
  opi_layers *layers = NULL;
  OPI_ASSERT_OK_FATAL(opi_layers_new("two \"sizes\"", 2, 2, opi_allocator_system(), &layers, &err),
                      &err);
  layers->samples[0] = 2;
  layers->samples[1] = 6;
  layers->tokens = 128;
  layers->weight_bytes = 4;
  layers->halves = true;
  for (uint32_t k = 0; k < 2; ++k) {
    for (uint32_t i = 0; i < 2; ++i) {
      layers->at[k * 2 + i] = (opi_layer){.flops = 1e12 / 3 * (k + 1),
                                          .forward_ns = 100.0 * (k + 1) + i,
                                          .input_ns = 30,
                                          .weight_ns = 40,
                                          .output_bytes = 10 * (k + 1),
                                          .cut_bytes = 20 * (k + 1),
                                          .stash_bytes = 30 * (k + 1),
                                          .param_bytes = 7,
                                          .width_share = 0.5,
                                          .width_bytes = 4 * (k + 1)};
    }
  }
  layers->names[0] = "a";
  layers->names[1] = "b \\ \"c\"";
  OPI_ASSERT_OK_FATAL(opi_layers_add_slices(layers, 3, &err), &err);
  for (uint32_t k = 0; k < 3; ++k) {
    layers->slices.tokens[k] = 8u << k;
    for (uint32_t i = 0; i < 2; ++i)
      layers->slices.alone[k * 2 + i] = (opi_token_cost){10.0 * (k + 1) * (k + 1), 0.5 * i};
  }
  layers->slices.context_ns[0] = 0.25;
  layers->slices.context_ns[1] = 1.0 / 3;
  return layers;
}

static void test_numbers_between(void) {
  opi_layers *layers = make_two();
  OPI_ASSERT(opi_layers_at(layers, 1, 2).forward_ns == 101);
  OPI_ASSERT(fabs(opi_layers_at(layers, 1, 3).forward_ns - 126) < 1e-9);
  OPI_ASSERT(opi_layers_at(layers, 0, 1).forward_ns == 50);
  OPI_ASSERT(opi_layers_at(layers, 0, 12).forward_ns == 400);
  OPI_ASSERT_INT(opi_layers_at(layers, 0, 12).param_bytes, 7);
  OPI_ASSERT_INT(opi_layers_at(layers, 0, 4).stash_bytes, 45);
  const opi_layer sum = opi_layers_sum(layers, 0, 2, 6);
  OPI_ASSERT(sum.forward_ns == 401 && opi_layer_backward_ns(&sum) == 140);
  OPI_ASSERT_INT(sum.cut_bytes, 40);
  OPI_ASSERT_INT(sum.stash_bytes, 120);
  OPI_ASSERT_INT(sum.param_bytes, 14);
  OPI_ASSERT(fabs(sum.width_share - 0.5) < 1e-12);
  opi_layers_free(layers);
}

static void test_slices_between(void) {
  opi_layers *layers = make_two();
  double ns[3], context = 0;
  opi_layers_slices_sum(layers, 0, 2, 4, ns, &context);
  OPI_ASSERT(fabs(ns[1] - (40 + 40 * 0.625)) < 1e-9); /* half of the second is divided by 4 */
  OPI_ASSERT(fabs(context - (0.25 + 1.0 / 3) / 4) < 1e-12);
  opi_layers_slices_sum(layers, 0, 1, 1, ns, &context);
  OPI_ASSERT(ns[0] == 10 && ns[1] == 40 && ns[2] == 90);
  OPI_ASSERT(opi_layers_alone_ns(layers, ns, 3) == 10);
  OPI_ASSERT(fabs(opi_layers_alone_ns(layers, ns, 12) - 25) < 1e-9);
  OPI_ASSERT(fabs(opi_layers_alone_ns(layers, ns, 24) - 65) < 1e-9);
  OPI_ASSERT(fabs(opi_layers_alone_ns(layers, ns, 48) - 140) < 1e-9); /* goes on */
  OPI_ASSERT_ERROR(opi_layers_add_slices(layers, OPI_TOKEN_COUNTS_MOST + 1, &err), OPIPE_E_LIMIT,
                   &err, "slices of 65 numbers of tokens");
  opi_layers_free(layers);
}

static void test_written_and_read_again(void) {
  opi_layers *layers = make_two(), *again = NULL;
  opi_text first, second;
  opi_text_init(&first, opi_allocator_system());
  opi_text_init(&second, opi_allocator_system());
  opi_layers_write(layers, &first);
  OPI_ASSERT_OK_FATAL(
      opi_layers_read_json("x", first.data, first.n, opi_allocator_system(), &again, &err), &err);
  opi_layers_write(again, &second);
  OPI_ASSERT_STR(second.data, first.data);
  OPI_ASSERT(memcmp(again->at, layers->at, 4 * sizeof(opi_layer)) == 0);
  OPI_ASSERT_INT(again->slices.n, 3);
  OPI_ASSERT(memcmp(again->slices.alone, layers->slices.alone, 6 * sizeof(opi_token_cost)) == 0);
  OPI_ASSERT(memcmp(again->slices.tokens, layers->slices.tokens, 3 * sizeof(uint32_t)) == 0);
  opi_layers_free(again);
  static const struct {
    const char *from, *to, *part;
  } changes[] = {
      {"profile 1", "profile 2", "it must be"},
      {"\"samples\": 6", "\"samples\": 2", "2 samples after 2"},
      {"\"width_share\": 0.5", "\"width_share\": 1.5", "width share is 1.5"},
      {"\"forward_ns\": 100", "\"forward_ns\": -100", "forward time in ns is -100"},
      {"\"param_bytes\": 7", "\"param_bytes\": -7", "\"param_bytes\" must be an integer"},
      {"\"param_bytes\": 7", "\"param_size\": 7", "\"param_bytes\" must be an integer"},
      {"\"layers\": [\"a\", ", "\"layers\": [", "\"costs\" has 2 entries for 1 layers"},
      {"\"layers\": [\"a\", ", "\"layers\": [1, ", "layers[0] must be a name"},
      {"\"halves\": true", "\"halves\": 1", "\"halves\" must be"},
      {"\"tokens\": [8, 16", "\"tokens\": [8, 8", "slices of 8 tokens after 8"},
      {"\"tokens\": [8, ", "\"tokens\": [", "2 numbers of tokens (at most 64), \"alone_ns\" of 3"},
      {"\"width_share\": [\n      [0, 0.5]", "\"width_share\": [\n      [0, 1.5]",
       "width share 1.5"},
      {"\"context_ns\": [0.25, ", "\"context_ns\": [", "\"context_ns\" must be a list of 2"},
      {"\"alone_ns\": [\n      [10, ", "\"alone_ns\": [\n      [true, ",
       "\"alone_ns\"[0] is not a number"},
  };
  for (size_t i = 0; i < OPI_COUNT(changes); ++i) {
    char text[4096];
    const char *at = strstr(first.data, changes[i].from);
    OPI_ASSERT_FATAL(at != NULL);
    (void)snprintf(text, sizeof text, "%.*s%s%s", (int)(at - first.data), first.data, changes[i].to,
                   at + strlen(changes[i].from));
    const opipe_status status =
        opi_layers_read_json("x", text, strlen(text), opi_allocator_system(), &again, &err);
    OPI_ASSERT(status < 0 && strstr(err.message, changes[i].part) != NULL);
    if (status < 0 && strstr(err.message, changes[i].part) == NULL)
      OPI_FAIL("change %zu: %s", i, err.message);
  }
  opi_text_release(&first);
  opi_text_release(&second);
  opi_layers_free(layers);
}

/* ---- described models ---- */

/* Papers' numbers of parameters: Chimera, table 4; Megatron-LM (SC'21), table 1 by its equation 2.
 */
static void test_published_parameters(void) {
  static const struct {
    const char *spec;
    double params, within;
  } rows[] = {
      {"gpt:layers=64,hidden=1280,heads=20,vocab=50257,positions=1024,seq=632,tied=0", 1389327360,
       0},
      {"bert:layers=48,hidden=1024,heads=16,vocab=30522,positions=512,seq=128,tied=0,pretraining=1",
       669790012, 0},
      {"gpt:layers=24,hidden=2304,heads=24,vocab=51200,seq=2048", 1.7e9, 0.03},
      {"gpt:layers=30,hidden=3072,heads=32,vocab=51200,seq=2048", 3.6e9, 0.014},
      {"gpt:layers=36,hidden=4096,heads=32,vocab=51200,seq=2048", 7.5e9, 0.01},
      {"gpt:layers=40,hidden=6144,heads=48,vocab=51200,seq=2048", 18.4e9, 0.005},
      {"gpt:layers=48,hidden=8192,heads=64,vocab=51200,seq=2048", 39.1e9, 0.005},
      {"gpt:layers=60,hidden=10240,heads=80,vocab=51200,seq=2048", 76.1e9, 0.005},
      {"gpt:layers=80,hidden=12288,heads=96,vocab=51200,seq=2048", 145.6e9, 0.005},
      {"gpt:layers=96,hidden=16384,heads=128,vocab=51200,seq=2048", 310.1e9, 0.005},
      {"gpt:layers=105,hidden=20480,heads=128,vocab=51200,seq=2048", 529.6e9, 0.005},
      {"gpt:layers=128,hidden=25600,heads=160,vocab=51200,seq=2048", 1008.0e9, 0.005},
      {"llama:layers=32,hidden=4096,heads=32,vocab=32000,seq=2048", 6738415616, 0},
      {"llama:layers=80,hidden=8192,heads=64,kv-heads=8,ffn=28672,vocab=32000,seq=2048",
       68976648192, 0},
  };
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_arch arch;
    OPI_ASSERT_OK_FATAL(opi_arch_parse(rows[i].spec, &arch, &err), &err);
    const double params = (double)opi_arch_params(&arch);
    if (fabs(params / rows[i].params - 1) > rows[i].within)
      OPI_FAIL("%s has %.0f parameters, published %.0f", rows[i].spec, params, rows[i].params);
    OPI_ASSERT(params > 0);
  }
}

/* Megatron-LM (SC'21), appendix: 24 B s l h^2 (1 + s / 6h + V / 12 l h) flops of a forward, to what
 * norms, activations and sums take beside. */
static void test_published_flops(void) {
  opi_arch arch;
  opi_layers *layers = NULL;
  const uint32_t samples = 4;
  const opi_arch_place nowhere = {NULL, 0};
  OPI_ASSERT_OK_FATAL(
      opi_arch_parse("gpt:layers=48,hidden=8192,heads=64,vocab=51200,seq=2048,type=fp16", &arch,
                     &err),
      &err);
  OPI_ASSERT_OK_FATAL(
      opi_arch_layers(&arch, "x", &nowhere, &samples, 1, opi_allocator_system(), &layers, &err),
      &err);
  const double l = 48, h = 8192, v = 51200, s = 2048, b = 4;
  const double wanted = 24 * b * s * l * h * h * (1 + s / (6 * h) + v / (12 * l * h));
  OPI_ASSERT(fabs(opi_layers_sum(layers, 0, layers->n_layers, 4).flops / wanted - 1) < 0.005);
  OPI_ASSERT_INT(layers->at[1].cut_bytes, (int64_t)(2 * b * s * h));
  OPI_ASSERT_INT(layers->at[1].width_bytes, (int64_t)(4 * b * s * h));
  opi_layers_free(layers);
}

static void test_wrong_descriptions_are_refused(void) {
  static const struct {
    const char *spec, *part;
  } rows[] = {
      {"", "must begin with gpt, llama or bert"},
      {"gpt2:layers=1", "must begin with gpt, llama or bert"},
      {"gpt", "gpt needs layers="},
      {"gpt:layers=2,hidden=8,heads=2,vocab=9", "gpt needs seq="},
      {"gpt:layers=0,hidden=8,heads=2,vocab=9,seq=4", "layers=0; it must be from 1 to"},
      {"gpt:layers=2,hidden=8,heads=3,vocab=9,seq=4", "hidden=8, heads=3, kv-heads=3"},
      {"gpt:layers=2,hidden=8,heads=2,vocab=9,seq=4,positions=3", "positions=3 are fewer"},
      {"gpt:layers=2,layers=2", "layers is given twice"},
      {"gpt:width=2", "'width' is not a key of gpt"},
      {"gpt:layers", "is not key=value"},
      {"gpt:type=fp8", "type=fp8; it must be"},
      {"gpt:tied=2", "tied=2; it must be 0 or 1"},
      {"gpt:pretraining=1", "'pretraining' is not a key of gpt"},
      {"gpt:layers=16777216,hidden=8,heads=2,vocab=9,seq=4", "it must be at most 65534"},
      {"gpt:layers=999999999999999999999999999999999999,hidden=8", "is not key=value"},
  };
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    opi_arch arch;
    const opipe_status status = opi_arch_parse(rows[i].spec, &arch, &err);
    if (status >= 0 || strstr(err.message, rows[i].part) == NULL)
      OPI_FAIL("'%s': %s", rows[i].spec, status >= 0 ? "accepted" : err.message);
    OPI_ASSERT(status < 0);
  }
}

OPI_TEST_MAIN("layers", OPI_TEST(test_totals_of_published_profiles), OPI_TEST(test_order_and_cuts),
              OPI_TEST(test_names_can_be_written), OPI_TEST(test_wrong_files_are_refused),
              OPI_TEST(test_numbers_between), OPI_TEST(test_slices_between),
              OPI_TEST(test_written_and_read_again), OPI_TEST(test_published_parameters),
              OPI_TEST(test_published_flops), OPI_TEST(test_wrong_descriptions_are_refused))
