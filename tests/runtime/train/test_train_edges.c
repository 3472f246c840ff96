/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a tensor is made where its reader has it is asked of the two ranks: domains of ranks in
 * every arrangement, tensors with readers on several ranks. Bits are the reference's. ctest:
 * timeout=120 */
#include <stdio.h>

#include "partition/lists/lists.h"
#include "tests/runtime/train/cases.h"

enum { RANKS = 4, M = 4, CLASSES = 32, T5 = 5 };

static bool share(const opi_decision *plan, const opi_list_stream *stream) {
  return plan->devices[stream->src_rank].domain == plan->devices[stream->dst_rank].domain;
}

typedef struct seen {
  uint32_t direct, copied_within, copied_across;
} seen;

/* Within a domain only what another rank of it has in place is copied. */
static void look_at_lists(kit *k, seen *out) {
  const opi_bind_options bind = {.allocator = opi_allocator_system(), .evaluator = k->evaluator};
  const uint32_t alignment[RANKS] = {64, 64, 64, 64};
  opi_cut_model *model = NULL;
  opi_lists *lists = NULL;
  const opi_cut_sources from = {.plan = &k->plan->decided,
                                .times = &k->plan->predicted.times,
                                .file = k->model,
                                .base = &bind};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &model, &k->err), &k->err);
  OPI_ASSERT_OK_FATAL(
      opi_lists_build(model, alignment, false, opi_allocator_system(), &lists, &k->err), &k->err);
  *out = (seen){.direct = 0};
  for (uint32_t i = 0; i < lists->n_messages; ++i) {
    const opi_list_message *m = &lists->messages[i];
    const opi_list_stream *stream = &lists->streams[m->stream];
    const size_t src =
        (size_t)model->cuts[0]->routes[m->route].src_cell * k->plan->decided.n_microbatches +
        m->microbatch;
    OPI_ASSERT(!m->direct || lists->lies_on[src] == stream->dst_rank);
    OPI_ASSERT(!m->direct || share(&k->plan->decided, stream));
    out->direct += m->direct;
    if (!m->direct)
      ++*(share(&k->plan->decided, stream) ? &out->copied_within : &out->copied_across);
  }
  OPI_ASSERT_INT(lists->n_made_in_place, out->direct);
  OPI_ASSERT_INT(lists->n_copied, out->copied_within + out->copied_across);
  opi_lists_free(lists);
  opi_cut_model_free(model);
}

static void run(const char *path, const uint32_t domains[RANKS], seen *out) {
  kit k;
  kit_outcome a, b;
  char what[60];
  kit_case c = kit_case_of("1f1b", RANKS, M, true);
  c.transport = "local";
  (void)snprintf(what, sizeof what, "domains %u %u %u %u", domains[0], domains[1], domains[2],
                 domains[3]);
  OPI_ASSERT_OK_FATAL(kit_open(&k, path, 8, 8), &k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
  for (uint32_t r = 0; r < RANKS; ++r)
    k.plan->decided.devices[r].domain = domains[r];
  look_at_lists(&k, out);
  if (kit_train(&k, &c, CLASSES, OPIPE_SESSION_POISON, &a) < 0 ||
      kit_train(&k, &c, CLASSES, OPIPE_SESSION_REFERENCE, &b) < 0)
    OPI_FAIL("%s: %s", what, k.err.message);
  else
    kit_compare(what, &a, &b, 0);
  kit_close(&k);
}

static void run_all(const char *path, bool several_readers) {
  static const uint32_t one[RANKS] = {0, 0, 0, 0}, none[RANKS] = {0, 1, 2, 3};
  static const uint32_t some[][RANKS] = {{0, 0, 1, 1}, {0, 1, 1, 0}, {0, 1, 0, 1}, {0, 1, 1, 1}};
  seen all, now;
  run(path, one, &all);
  OPI_ASSERT(all.direct > 0);
  OPI_ASSERT_INT(all.copied_across, 0);
  OPI_ASSERT(!several_readers || all.copied_within > 0);
  run(path, none, &now);
  OPI_ASSERT_INT(now.direct + now.copied_within, 0);
  OPI_ASSERT_INT(now.copied_across, all.direct + all.copied_within);
  for (size_t i = 0; i < OPI_COUNT(some); ++i) {
    run(path, some[i], &now);
    OPI_ASSERT(now.copied_across > 0);
    OPI_ASSERT_INT(now.direct + now.copied_within + now.copied_across,
                   all.direct + all.copied_within);
    OPI_ASSERT(i == 2 || now.direct > 0); /* where neighbours share nothing only skips may */
  }
}

static void test_a_line(void) {
  run_all(opi_test_source("tests/data/gpt_8block/model.onnx"), false);
}

/* The encoder's result is read by every stage of the decoder. */
static void test_several_readers(void) {
  char kept[1024];
  const char *path = kit_subject_path(&kit_subjects[T5]);
  if (path == NULL)
    return;
  (void)snprintf(kept, sizeof kept, "%s", path);
  run_all(kept, true);
}

OPI_TEST_MAIN("edges between ranks", OPI_TEST(test_a_line), OPI_TEST(test_several_readers))
