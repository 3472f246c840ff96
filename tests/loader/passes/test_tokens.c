/* SPDX-License-Identifier: Apache-2.0 */
/* ctest: timeout=240
 * Token slices: run one after the other, with keys and values handed on, they give the rows of the
 * whole sequence; models that are not causal are refused by node.
 */
#include "tests/loader/passes/sequence.h"

static void check_sliced(const char *folder, uint32_t flags, const int64_t *lengths, uint32_t n) {
  sequence q;
  if (open_sequence(&q, folder, flags))
    check_slices(&q, folder, lengths, n);
  close_sequence(&q);
}

static const char *const causal[] = {
    "gpt2/train",   "gpt2/infer_op23", "gpt2/train_legacy", "llama/train", "llama/train_op23_fused",
    "bloom/train",  "opt/train",       "qwen2/train",       "phi3/train",  "gptneox/train",
    "gemma2/train", "olmo2/train"};

static void test_slices_give_the_rows(void) {
  static const int64_t even[] = {3, 3, 3, 3}, uneven[] = {1, 4, 2, 5, 1};
  check_sliced(opi_test_source("tests/data/gpt_8block"), 0, even, 4);
  check_sliced(opi_test_source("tests/data/llama_8block"), 0, uneven, 5);
  check_sliced(opi_test_source("tests/data/llama_8block"), OPI_BIND_NO_FUSE, even, 4);
  for (size_t i = 0; i < OPI_COUNT(causal); ++i) {
    char folder[512];
    (void)snprintf(folder, sizeof(folder), "models/modern/%s", causal[i]);
    const char *path = opi_test_shared(folder);
    if (path == NULL) {
      OPI_SKIP("no %s", folder);
      return;
    }
    check_sliced(path, 0, i % 2 == 0 ? even : uneven, i % 2 == 0 ? 4 : 5);
    check_sliced(path, OPI_BIND_NO_FUSE, i % 2 != 0 ? even : uneven, i % 2 != 0 ? 4 : 5);
  }
}

static void expect_refused(const char *folder, uint32_t flags, const char *text) {
  sequence q;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_token_slice *slice = NULL;
  if (open_sequence(&q, folder, flags)) {
    const opi_graph *g = q.whole->graph;
    const opi_token_wish wish = {&g->values[g->outputs[0]].name, 1, 0, 2};
    OPI_ASSERT_ERROR(
        opi_slice_tokens(q.tokens, &wish, q.evaluator, opi_allocator_system(), &slice, &err),
        OPIPE_E_UNSUPPORTED, &err, text);
  }
  close_sequence(&q);
}

static void test_what_is_not_causal_is_refused(void) {
  static const char *const folders[] = {"bert/train", "distilbert/train", "roberta/train"};
  for (size_t i = 0; i < OPI_COUNT(folders); ++i) {
    char folder[512];
    (void)snprintf(folder, sizeof(folder), "models/modern/%s", folders[i]);
    const char *path = opi_test_shared(folder);
    if (path == NULL) {
      OPI_SKIP("no %s", folder);
      return;
    }
    expect_refused(path, 0,
                   "(Attention): tokens cannot be sliced: it is not causal: row 0 may read");
    expect_refused(path, OPI_BIND_NO_FUSE,
                   "(Softmax): tokens cannot be sliced: it is not causal: row 0 may read");
  }
}

static void test_ranges_are_checked(void) {
  sequence q;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_token_slice *slice = NULL;
  if (open_sequence(&q, opi_test_source("tests/data/gpt_8block"), 0)) {
    static const char *const names[] = {"logits", "nothing"};
    const opi_token_wish beyond = {names, 1, 4, q.n_tokens}, unknown = {names, 2, 0, 1};
    OPI_ASSERT_ERROR(
        opi_slice_tokens(q.tokens, &beyond, q.evaluator, opi_allocator_system(), &slice, &err),
        OPIPE_E_INVALID, &err, "tokens from 4 of a sequence of");
    OPI_ASSERT_ERROR(
        opi_slice_tokens(q.tokens, &unknown, q.evaluator, opi_allocator_system(), &slice, &err),
        OPIPE_E_NOTFOUND, &err, "no value 'nothing'");
  }
  close_sequence(&q);
}

/* Each of several outputs says where it has its tokens; keys and values include the earlier ones.
 */
static void test_outputs_say_their_tokens(void) {
  static const char *const names[] = {"logits", "present_k_0"};
  const opi_dim_binding dims[] = {{"batch", 2}, {"seq", 6}, {"past", 5}};
  sequence q;
  opi_token_slice *slice = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  memset(&q, 0, sizeof q);
  opi_arena_init(&q.arena, opi_allocator_system(), 0);
  q.evaluator = test_backend_evaluator();
  OPI_ASSERT_FATAL(test_load(&q.m, opi_test_source("tests/data/gpt_past/model.onnx"), &err));
  for (uint32_t less = 0; less < 2; ++less) {
    const opi_dim_binding own[] = {dims[0], {"seq", dims[1].value - less}, dims[2]};
    const opi_bind_options options = {
        .dims = own, .n_dims = 3, .evaluator = q.evaluator, .allocator = opi_allocator_system()};
    OPI_ASSERT_OK_FATAL(opi_bind(q.m.model, &options, less == 0 ? &q.whole : &q.other, &err), &err);
  }
  OPI_ASSERT_OK_FATAL(
      opi_tokens_find(q.whole, 6, q.other, 5, opi_allocator_system(), &q.tokens, &err), &err);
  for (int64_t first = 0; first < 6; first += 3) {
    const opi_token_wish wish = {names, 2, first, 3};
    OPI_ASSERT_OK_FATAL(
        opi_slice_tokens(q.tokens, &wish, q.evaluator, opi_allocator_system(), &slice, &err), &err);
    const opi_token_output *o = slice->outputs;
    OPI_ASSERT(slice->n_outputs == 2 && o[0].carry.axis == 1);
    OPI_ASSERT(o[0].first == first && o[0].length == 3 && o[0].n_whole == 6);
    OPI_ASSERT_INT(o[1].carry.axis, 2);
    OPI_ASSERT(o[1].first == (first == 0 ? 0 : 8) && o[1].length == (first == 0 ? 8 : 3) &&
               o[1].n_whole == 11);
    OPI_ASSERT_INT(slice->bound->graph->values[o[1].value].shape[2], o[1].length);
    opi_token_slice_free(slice);
  }
  close_sequence(&q);
}

OPI_TEST_MAIN("tokens", OPI_TEST(test_slices_give_the_rows),
              OPI_TEST(test_outputs_say_their_tokens), OPI_TEST(test_what_is_not_causal_is_refused),
              OPI_TEST(test_ranges_are_checked))
