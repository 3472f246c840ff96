/* SPDX-License-Identifier: Apache-2.0 */
/* Training graphs of a member of a tensor group, in two stages: cut into stretches, each program
 * has the nodes between two collectives, or collectives alone, and no value travels the wrong way.
 * ctest: timeout=120 */
#include "loader/shard/shard.h"
#include "partition/program/cut.h"
#include "partition/program/stretches.h"
#include "tests/loader/fusion/models.h"

enum { STAGES = 2, PROGRAMS = 1u << OPI_PROGRAM_F | 1u << OPI_PROGRAM_I | 1u << OPI_PROGRAM_W };

typedef struct divided {
  test_model m;
  opi_bound *bound;
  opi_shards *shards;
  opi_training *t;
  uint32_t *stage;
} divided;

static opipe_status bind(divided *d, opipe_error *err) {
  opi_input_shape shapes[TEST_MAX_TENSORS];
  for (uint32_t i = 0; i < d->m.n_inputs; ++i) {
    const opi_value *v = &d->m.inputs[i];
    shapes[i] = (opi_input_shape){v->name, v->shape, (uint32_t)v->rank};
  }
  const opi_bind_options options = {.flags = OPI_BIND_KEEP_PARAMETERS | OPI_BIND_DEFAULTS,
                                    .shapes = shapes,
                                    .n_shapes = d->m.n_inputs,
                                    .evaluator = test_backend_evaluator(),
                                    .allocator = opi_allocator_system()};
  return opi_bind(d->m.model, &options, &d->bound, err);
}

/* The first member of two; its graph's first half is stage 0. */
static opipe_status divide(divided *d, const char *folder, uint32_t recompute, opipe_error *err) {
  char path[1024];
  (void)snprintf(path, sizeof path, "%.900s/model.onnx", folder);
  memset(d, 0, sizeof *d);
  if (!test_load(&d->m, path, err) || !test_read_set(&d->m, folder, 0))
    return opi_fail(err, OPIPE_E_NOTFOUND, "%s: no model, or no data set", folder);
  OPI_TRY(bind(d, err));
  const opi_shard_wish wish = {.width = 2,
                               .flags = OPI_SHARD_TRAIN | OPI_SHARD_DENSE,
                               .evaluator = test_backend_evaluator(),
                               .allocator = opi_allocator_system()};
  OPI_TRY(opi_shard(d->bound, &wish, &d->shards, err));
  const opi_bound *member = d->shards->members[0].bound;
  const opi_graph *g = member->graph;
  d->stage = OPI_ARENA_ARRAY(&d->m.arena, uint32_t, g->n_nodes);
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    d->stage[n] = n * STAGES / g->n_nodes;
  const opi_value *scores = &g->values[g->outputs[0]];
  const opi_loss loss = {.kind = OPI_LOSS_MSE, .output = scores->name, .labels = "target"};
  const opi_gradient_options options = {.loss = &loss,
                                        .stage_of_node = d->stage,
                                        .recompute = recompute,
                                        .evaluator = test_backend_evaluator(),
                                        .allocator = opi_allocator_system()};
  return opi_gradient_build(member, &options, &d->t, err);
}

static void close_divided(divided *d) {
  opi_training_free(d->t);
  opi_shards_free(d->shards);
  opi_bound_free(d->bound);
  test_unload(&d->m);
}

static bool is_collective(const opi_graph *g, const opi_node *node) {
  opi_collective how;
  return opi_collective_of(g, node, &how) && how.kind != OPI_COLLECTIVE_SPREAD;
}

/* Collectives of the graph, by pass: forward, backward. */
static void count_collectives(const opi_graph *g, uint32_t counts[2]) {
  for (uint32_t n = 0; n < g->n_nodes; ++n) {
    if (is_collective(g, &g->nodes[n]))
      ++counts[g->nodes[n].pass != OPIPE_PASS_FORWARD];
  }
}

static bool is_group(const opipe_node *node) {
  return strncmp(node->op, "Group", 5) == 0 && strcmp(node->op, "GroupSpread") != 0;
}

/* Nodes of a place's program; those that are collectives are all of an odd place's and none of an
 * even one's. */
static uint32_t count_program(const opi_cut *c, uint32_t place, uint32_t program,
                              uint32_t n_places) {
  const opipe_graph *g = &opi_program_of(c, place, program)->graph;
  for (uint32_t n = 0; n < g->n_nodes; ++n)
    OPI_ASSERT_INT(is_group(&g->nodes[n]), place % n_places % 2);
  return g->n_nodes;
}

static void check_cut(const divided *d, const opi_stretches *s, const char *name) {
  uint32_t wanted[2] = {0, 0}, found[2] = {0, 0}, stretches[2] = {0, 0}, n_nodes = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_cut *c = NULL;
  uint32_t *used = calloc((size_t)STAGES * s->n_places, sizeof *used);
  OPI_ASSERT_FATAL(used != NULL);
  for (uint32_t i = 0; i < STAGES * s->n_places; ++i)
    used[i] = PROGRAMS;
  const opi_cut_source source = {.graph = d->t->graph,
                                 .training = d->t,
                                 .stage = s->stage,
                                 .scalars = d->t->scalars,
                                 .used = used,
                                 .n_stages = STAGES * s->n_places,
                                 .n_places = s->n_places};
  OPI_ASSERT_OK_FATAL(opi_cut_build(&source, opi_allocator_system(), &c, &err), &err);
  for (uint32_t place = 0; place < c->n_stages; ++place) {
    const uint32_t forward = count_program(c, place, OPI_PROGRAM_F, s->n_places);
    const uint32_t input = count_program(c, place, OPI_PROGRAM_I, s->n_places);
    const uint32_t weight = count_program(c, place, OPI_PROGRAM_W, s->n_places);
    uint32_t *counts = place % s->n_places % 2 != 0 ? found : stretches;
    counts[0] += counts == found ? forward : forward != 0;
    counts[1] += counts == found ? input + weight : input != 0;
    n_nodes += forward + input + weight;
  }
  count_collectives(d->t->graph, wanted);
  OPI_ASSERT_INT(n_nodes, d->t->graph->n_nodes);
  OPI_ASSERT_INT(found[0], wanted[0]);
  OPI_ASSERT_INT(found[1], wanted[1]);
  OPI_ASSERT(wanted[0] > 0 && wanted[1] > 0 && stretches[0] <= wanted[0] + STAGES);
  (void)printf("\n    %s: %u + %u collectives, %u stretches forward, %u backward", name, found[0],
               found[1], stretches[0], stretches[1]);
  opi_cut_free(c);
  free(used);
}

static void test_members_are_cut_at_their_collectives(void) {
  static const char *const models[] = {"gpt2", "llama", "bert", "phi3", "t5", "gptneox"};
  if (test_backend_evaluator() == NULL)
    OPI_SKIP("backend-cpu is not built");
  static const uint32_t recomputes[] = {OPI_RECOMPUTE_NONE, OPI_RECOMPUTE_STAGE,
                                        OPI_RECOMPUTE_BLOCK, OPI_RECOMPUTE_ATTENTION};
  for (size_t k = 0; k < OPI_COUNT(models) * OPI_COUNT(recomputes); ++k) {
    const size_t i = k / OPI_COUNT(recomputes);
    char name[80];
    divided d;
    opi_stretches found;
    opipe_error err = OPIPE_ERROR_INIT;
    (void)snprintf(name, sizeof name, "models/modern/%s/infer", models[i]);
    const char *folder = opi_test_shared(name);
    if (folder == NULL)
      continue;
    OPI_ASSERT_OK_FATAL(divide(&d, folder, recomputes[k % OPI_COUNT(recomputes)], &err), &err);
    const opi_stretch_source from = {
        .graph = d.t->graph, .stage = d.t->stage, .anchor = d.t->anchor, .n_stages = STAGES};
    OPI_ASSERT_OK_FATAL(opi_stretches_find(&from, &d.m.arena, &found, &err), &err);
    check_cut(&d, &found, models[i]);
    close_divided(&d);
  }
}

OPI_TEST_MAIN("stretches", OPI_TEST(test_members_are_cut_at_their_collectives))
