/* SPDX-License-Identifier: Apache-2.0 */
/* The library's own word on the schedules: their orders are lowered to messages, reductions and
 * frees, and the proof accepts them under tag-matched delivery, for all ranks and micro-batches of
 * a grid; its peak stash is the replay's.
 */
#include <math.h>

#include "loader/base/base.h"
#include "partition/schedule/actions.h"
#include "tests/plugins/schedules/kit.h"

enum { RANKS_MOST = 8, MICROBATCHES_MOST = 13 };

static asked_order o;

static opi_problem problem_of(uint32_t mode, opi_stage_edge *edges) {
  const opipe_layout *l = &o.layout;
  opi_edges_chain(edges, l->n_stages);
  const opi_problem p = {.n_ranks = l->n_ranks,
                         .n_stages = l->n_stages,
                         .n_replicas = l->n_replicas,
                         .n_microbatches = o.n_microbatches,
                         .n_slices = l->n_slices,
                         .n_parts = l->n_parts,
                         .mode = mode,
                         .versions = l->versions,
                         .sync = l->sync,
                         .instance_rank = o.instance_rank,
                         .edges = edges,
                         .n_edges = l->n_stages - 1};
  return p;
}

/* The stash of the proof, in micro-batches, against the replay's. */
static void compare_stash(const char *schedule, const opi_proof *proof) {
  const kit_costs costs = {1, 2, 0};
  if (o.layout.versions != OPIPE_VERSIONS_ONE)
    return; /* the replay knows one mini-batch */
  const kit_times t = kit_replay_order(&o, &costs);
  for (uint32_t rank = 0; rank < o.layout.n_ranks; ++rank) {
    const double found = (double)proof->peak_stash[rank] / proof->scale;
    if (fabs(found - t.peak[rank]) > 1e-9) {
      OPI_FAIL("%s, rank %u of %u, %u micro-batches: stash %g, the replay has %g", schedule, rank,
               o.layout.n_ranks, o.n_microbatches, found, t.peak[rank]);
    }
  }
}

static void prove(const char *schedule, uint32_t mode, uint32_t ranks, uint32_t m) {
  static opi_stage_edge edges[ASKED_INSTANCES];
  uint64_t peak[ASKED_RANKS] = {0};
  const kit_request q = {schedule, mode, ranks, 0, m, 0, 0};
  const opi_lowering how = {.receive_depth = 1};
  const opipe_allocator *allocator = opi_allocator_system();
  opi_do_list *order = NULL, *lowered = NULL;
  opi_proof proof = {.peak_stash = peak};
  asked_end(&o);
  if (!OPI_ASSERT_OK(kit_ask(&q, &o), &asked_err))
    return;
  const opi_problem p = problem_of(mode, edges);
  if (OPI_ASSERT_OK(opi_do_list_from_records(&p, o.actions, o.n, allocator, &order, &asked_err),
                    &asked_err) &&
      OPI_ASSERT_OK(opi_lower_order(&p, order, &how, allocator, &lowered, &asked_err),
                    &asked_err) &&
      OPI_ASSERT_OK(opi_proof_check(&p, lowered, OPI_RULE_TAG, allocator, &proof, &asked_err),
                    &asked_err) &&
      mode == OPIPE_MODE_TRAIN)
    compare_stash(schedule, &proof);
  opi_do_list_free(lowered);
  opi_do_list_free(order);
}

static void prove_all(const char *schedule, uint32_t step, bool whole_steps) {
  for (uint32_t p = step; p <= RANKS_MOST; p += step) {
    for (uint32_t m = whole_steps ? p : 1; m <= MICROBATCHES_MOST; ++m) {
      prove(schedule, OPIPE_MODE_TRAIN, p, m);
      prove(schedule, OPIPE_MODE_FORWARD, p, m);
    }
  }
}

static void test_one_stage_per_rank(void) {
  prove_all("sequential", 1, false);
  prove_all("gpipe", 1, false);
  prove_all("1f1b", 1, false);
  prove_all("1f1b:policy=pb", 1, false);
  prove_all("1f1b:depth=2", 1, false);
}

static void test_several_stages_per_rank(void) {
  prove_all("looped-bfs:chunks=2", 1, false);
  prove_all("looped-bfs:chunks=3", 1, false);
  prove_all("interleaved:chunks=2", 1, false);
  prove_all("interleaved:chunks=3,warmup=torch", 1, false);
  prove_all("interleaved:chunks=2,group=3", 1, false);
  prove_all("interleaved:chunks=3,group=1", 1, false);
}

static void test_two_directions(void) {
  prove_all("chimera", 2, false);
  prove_all("chimera:sync=eager", 2, false);
  prove_all("chimera:sync=eager-opt,concat=doubling", 2, false);
  prove_all("chimera:concat=halving", 2, false);
  prove_all("chimera:pipelines=4,concat=doubling", 4, false);
  prove_all("chimera:pipelines=4,concat=halving", 4, false);
}

static void test_two_versions(void) {
  prove_all("2bw", 1, true);
}

OPI_TEST_MAIN("proofs of schedules", OPI_TEST(test_one_stage_per_rank),
              OPI_TEST(test_several_stages_per_rank), OPI_TEST(test_two_directions),
              OPI_TEST(test_two_versions))
