/* SPDX-License-Identifier: Apache-2.0 */
/* A training step does not make values that it does not return: outputs of the model beyond the
 * loss are an evaluation's, whose memory they share. ctest: timeout=300 */
#include <stdio.h>

#include "partition/lists/lists.h"
#include "partition/program/model.h"
#include "tests/runtime/train/kit.h"

enum { ROWS = 8, TOKENS = 8, CLASSES = 20, ALIGNMENT = 64, RANKS_MOST = 8 };

static const char model_path[] = "tests/data/gpt_raw/model.onnx";

typedef struct bench {
  kit k;
  opi_cut_model *model;
  opi_lists *lists;
} bench;

static kit_case case_of(const char *schedule, uint32_t n_ranks, uint32_t m, uint32_t compute) {
  kit_case c = kit_case_of(schedule, n_ranks, m, true);
  c.spec.compute = compute;
  return c;
}

static void open_bench(bench *b, const char *model, const kit_case *c) {
  uint32_t alignment[RANKS_MOST];
  for (uint32_t r = 0; r < RANKS_MOST; ++r)
    alignment[r] = ALIGNMENT;
  *b = (bench){.lists = NULL};
  OPI_ASSERT_OK_FATAL(kit_open(&b->k, opi_test_source(model), ROWS, TOKENS), &b->k.err);
  OPI_ASSERT_OK_FATAL(kit_plan(&b->k, c), &b->k.err);
  const opi_bind_options base = {.evaluator = b->k.evaluator, .allocator = opi_allocator_system()};
  const opi_cut_sources from = {.plan = &b->k.plan->decided,
                                .times = &b->k.plan->predicted.times,
                                .file = b->k.model,
                                .base = &base};
  OPI_ASSERT_OK_FATAL(opi_cut_model_build(&from, &b->model, &b->k.err), &b->k.err);
  OPI_ASSERT_OK_FATAL(
      opi_lists_build(b->model, alignment, false, opi_allocator_system(), &b->lists, &b->k.err),
      &b->k.err);
}

static void close_bench(bench *b) {
  opi_lists_free(b->lists);
  opi_cut_model_free(b->model);
  kit_close(&b->k);
}

/* ---- programs ---- */

/* The program's boundary of a cell, as an output; OPIPE_NONE: none. */
static uint32_t output_of(const opi_program *program, uint32_t cell) {
  for (uint32_t b = 0; b < program->graph.n_boundaries; ++b) {
    if (program->cells[b] == cell && program->writes[b])
      return b;
  }
  return OPIPE_NONE;
}

/* Every node has a reader, or leaves something. */
static void check_nodes_are_read(const opi_program *program) {
  const opipe_graph *g = &program->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    bool read = false;
    for (uint32_t k = 0; k < g->nodes[n].n_out; ++k) {
      const uint32_t v = g->nodes[n].out[k];
      read = read || (v != OPIPE_NONE && g->values[v].role != OPIPE_VALUE_TEMP);
      for (uint32_t r = n + 1; v != OPIPE_NONE && r < g->n_nodes; ++r) {
        for (uint32_t i = 0; i < g->nodes[r].n_in; ++i)
          read = read || g->nodes[r].in[i] == v;
      }
    }
    if (!read)
      OPI_FAIL("nobody reads what node %u ('%s') makes", n, g->nodes[n].op);
  }
}

static void test_a_step_makes_the_loss_alone(void) {
  static const uint32_t computes[] = {OPIPE_FLOAT, OPIPE_BFLOAT16};
  for (size_t i = 0; i < OPI_COUNT(computes); ++i) {
    bench b;
    const kit_case c = case_of("1f1b", 2, 4, computes[i]);
    open_bench(&b, model_path, &c);
    const opi_cut *cut = b.model->cuts[0];
    const uint32_t stage = cut->n_stages - 1, scores = opi_output_cell_at(cut, 1, stage);
    const opi_program *f = opi_program_of(cut, stage, OPI_PROGRAM_F);
    const opi_program *e = opi_program_of(cut, stage, OPI_PROGRAM_E);
    OPI_ASSERT_FATAL(scores != OPIPE_NONE);
    OPI_ASSERT(output_of(f, opi_output_cell_at(cut, 0, stage)) != OPIPE_NONE);
    OPI_ASSERT(output_of(f, scores) == OPIPE_NONE);
    OPI_ASSERT(output_of(e, scores) != OPIPE_NONE);
    OPI_ASSERT(output_of(e, opi_output_cell_at(cut, 0, stage)) != OPIPE_NONE);
    for (uint32_t p = 0; p < OPI_PROGRAMS; ++p)
      check_nodes_are_read(opi_program_of(cut, stage, p));
    close_bench(&b);
  }
}

/* ---- bytes ---- */

/* One stage, one micro-batch: what F leaves is all there at the end of it, and nothing else is. */
static void test_a_step_has_no_bytes_for_them(void) {
  bench b;
  uint64_t kept = 0, scores = 0;
  const kit_case c = case_of("gpipe", 1, 1, OPIPE_BFLOAT16);
  open_bench(&b, model_path, &c);
  const opi_cut *cut = b.model->cuts[0];
  for (uint32_t i = 0; i < cut->n_cells; ++i) {
    const uint64_t n_bytes = opi_align_up(cut->cells[i].n_bytes, ALIGNMENT);
    if (opi_cell_is_evaluated(cut, &cut->cells[i]))
      scores += n_bytes;
    else if (cut->cells[i].phase == OPI_PHASE_F)
      kept += n_bytes;
  }
  OPI_ASSERT(scores > 0 && scores < kept);
  OPI_ASSERT_INT(b.lists->boundary_bytes[0] + b.lists->stash_bytes[0], kept);
  close_bench(&b);
}

/* ---- runs ---- */

static void compare_evaluations(kit *k, opi_session *session, opi_session *reference,
                                const kit_batch *batch, const char *what) {
  double loss[2] = {0};
  float *scores[2] = {NULL, NULL};
  size_t n[2] = {0};
  OPI_ASSERT_OK_FATAL(kit_evaluate(k, session, batch, &loss[0], &scores[0], &n[0]), &k->err);
  OPI_ASSERT_OK_FATAL(kit_evaluate(k, reference, batch, &loss[1], &scores[1], &n[1]), &k->err);
  OPI_ASSERT_INT(n[0], n[1]);
  if (loss[0] != loss[1] || memcmp(scores[0], scores[1], n[0] * sizeof(float)) != 0)
    OPI_FAIL("%s: an evaluation is not the reference's, loss %g and %g", what, loss[0], loss[1]);
}

/* Evaluations between steps have the reference's bits, scores too, and leave the steps theirs. */
static void test_evaluations_between_steps(void) {
  static const struct {
    const char *schedule;
    uint32_t n_ranks, m;
  } rows[] = {{"gpipe", 2, 4},
              {"1f1b", 2, 3},
              {"chimera", 2, 4},
              {"interleaved", 2, 4},
              {"zb-h1", 2, 4},
              {"zbv", 2, 4},
              {"2bw", 2, 4},
              {"dualpipev", 2, 4},
              {"chimera:concat=halving", 2, 2},
              {"seq1f1b:slices=2", 2, 4}};
  for (size_t i = 0; i < OPI_COUNT(rows); ++i) {
    kit k;
    kit_batch batch;
    opi_session *session = NULL, *reference = NULL;
    double loss[2] = {0};
    const kit_case c = case_of(rows[i].schedule, rows[i].n_ranks, rows[i].m, OPIPE_BFLOAT16);
    const uint32_t flags = i % 2 == 0 ? OPIPE_SESSION_POISON : 0;
    OPI_ASSERT_OK_FATAL(kit_open(&k, opi_test_source(model_path), ROWS, TOKENS), &k.err);
    OPI_ASSERT_OK_FATAL(kit_plan(&k, &c), &k.err);
    OPI_ASSERT_OK_FATAL(kit_session(&k, flags, &session), &k.err);
    OPI_ASSERT_OK_FATAL(kit_session(&k, OPIPE_SESSION_REFERENCE, &reference), &k.err);
    for (uint32_t step = 0; step < 3; ++step) {
      OPI_ASSERT_OK_FATAL(kit_batch_random(&k, &c, CLASSES, 20 + step, &batch), &k.err);
      compare_evaluations(&k, session, reference, &batch, rows[i].schedule);
      OPI_ASSERT_OK_FATAL(kit_step(&k, session, &batch, &loss[0]), &k.err);
      OPI_ASSERT_OK_FATAL(kit_step(&k, reference, &batch, &loss[1]), &k.err);
      if (loss[0] != loss[1])
        OPI_FAIL("%s: step %u: loss %g and %g", rows[i].schedule, step, loss[0], loss[1]);
    }
    opi_session_close(session);
    opi_session_close(reference);
    kit_close(&k);
  }
}

OPI_TEST_MAIN("training outputs", OPI_TEST(test_a_step_makes_the_loss_alone),
              OPI_TEST(test_a_step_has_no_bytes_for_them), OPI_TEST(test_evaluations_between_steps))
