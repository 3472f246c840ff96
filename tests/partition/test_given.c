/* SPDX-License-Identifier: Apache-2.0 */
/* Given cuts: the syntax, what goes where, and what contradicts. */
#include "partition/search/given.h"
#include "tests/partition/toy.h"

static void test_the_syntax_is_read(void) {
  opi_arena arena;
  opi_cut_edge *edges = NULL;
  uint32_t n = 0, boundaries = 0;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  OPI_ASSERT_OK_FATAL(
      opi_cut_parse("326,103:413+529;558,a\\:b\\,c:645", &arena, &edges, &n, &boundaries, &err),
      &err);
  OPI_ASSERT_INT(n, 4);
  OPI_ASSERT_INT(boundaries, 2);
  OPI_ASSERT_STR(edges[1].tensor, "103");
  OPI_ASSERT_INT(edges[1].n_consumers, 2);
  OPI_ASSERT_STR(edges[1].consumers[1], "529");
  OPI_ASSERT_INT(edges[2].boundary, 1);
  OPI_ASSERT_STR(edges[3].tensor, "a:b,c");
  OPI_ASSERT_ERROR(opi_cut_parse("a,,b", &arena, &edges, &n, &boundaries, &err), OPIPE_E_INVALID,
                   &err, "character 2");
  OPI_ASSERT_ERROR(opi_cut_parse("a+b", &arena, &edges, &n, &boundaries, &err), OPIPE_E_INVALID,
                   &err, "'+' is not allowed");
  OPI_ASSERT_ERROR(opi_cut_parse("", &arena, &edges, &n, &boundaries, &err), OPIPE_E_INVALID, &err,
                   "a name is missing");
  OPI_ASSERT_ERROR(opi_cut_parse("a;", &arena, &edges, &n, &boundaries, &err), OPIPE_E_INVALID,
                   &err, "a name is missing");
  opi_arena_release(&arena);
}

/* mask feeds both halves; side is read by nobody behind the cut. */
static void make_graph(toy *t, opi_bound *bound) {
  toy_open(t);
  const uint32_t x = toy_input(t, "x", 8);
  const uint32_t mask = toy_node(t, "mask", (uint32_t[]){x}, 1, 8);
  const uint32_t a = toy_node(t, "a", (uint32_t[]){x, mask}, 2, 8);
  const uint32_t side = toy_node(t, "side", (uint32_t[]){a}, 1, 8);
  const uint32_t b = toy_node(t, "b", (uint32_t[]){a, mask}, 2, 8);
  toy_output(t, b);
  toy_output(t, side);
  memset(bound, 0, sizeof(*bound));
  bound->graph = t->graph;
}

static void test_consumers_move_behind_the_boundary(void) {
  toy t;
  opi_bound bound;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t stage[4];
  const char *consumers[] = {"b"};
  make_graph(&t, &bound);
  const opi_cut_edge edges[] = {{.tensor = "a", .consumers = consumers, .n_consumers = 1},
                                {.tensor = "mask", .consumers = consumers, .n_consumers = 1}};
  OPI_ASSERT_OK_FATAL(opi_cut_given(&bound, NULL, edges, 2, 2, opi_allocator_system(), stage, &err),
                      &err);
  OPI_ASSERT_INT(stage[0], 0);
  OPI_ASSERT_INT(stage[1], 0);
  OPI_ASSERT_INT(stage[2], 0); /* not named: stays with its producer */
  OPI_ASSERT_INT(stage[3], 1);
  const opi_cut_edge all[] = {{.tensor = "a"}};
  OPI_ASSERT_OK(opi_cut_given(&bound, NULL, all, 1, 2, opi_allocator_system(), stage, &err), &err);
  OPI_ASSERT_INT(stage[2], 1);
  toy_close(&t);
}

static void test_what_is_not_there_is_named(void) {
  toy t;
  opi_bound bound;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t stage[4];
  const char *nobody[] = {"zz"}, *wrong[] = {"mask"};
  make_graph(&t, &bound);
  const opi_cut_edge missing[] = {{.tensor = "q"}},
                     stranger[] = {{.tensor = "a", .consumers = nobody, .n_consumers = 1}},
                     unread[] = {{.tensor = "a", .consumers = wrong, .n_consumers = 1}},
                     crossed[] = {{.tensor = "mask"}, {.tensor = "b", .boundary = 0}};
  OPI_ASSERT_ERROR(opi_cut_given(&bound, NULL, missing, 1, 2, opi_allocator_system(), stage, &err),
                   OPIPE_E_NOTFOUND, &err, "'q'");
  OPI_ASSERT_ERROR(opi_cut_given(&bound, NULL, stranger, 1, 2, opi_allocator_system(), stage, &err),
                   OPIPE_E_NOTFOUND, &err, "'zz'");
  OPI_ASSERT_ERROR(opi_cut_given(&bound, NULL, unread, 1, 2, opi_allocator_system(), stage, &err),
                   OPIPE_E_INVALID, &err, "does not read it");
  OPI_ASSERT_ERROR(opi_cut_given(&bound, NULL, crossed, 2, 2, opi_allocator_system(), stage, &err),
                   OPIPE_E_INVALID, &err, "contradict");
  toy_close(&t);
}

static void test_annotations_must_go_forward(void) {
  toy t;
  opi_bound bound;
  opipe_error err = OPIPE_ERROR_INIT;
  uint32_t stage[4];
  make_graph(&t, &bound);
  t.graph->nodes[3].stage = 1;
  OPI_ASSERT_OK(opi_cut_annotated(t.graph, 2, stage, &err), &err);
  OPI_ASSERT_INT(stage[3], 1);
  OPI_ASSERT_INT(stage[2], 0);
  t.graph->nodes[1].stage = 1;
  t.graph->nodes[3].stage = 0;
  OPI_ASSERT_ERROR(opi_cut_annotated(t.graph, 2, stage, &err), OPIPE_E_INVALID, &err,
                   "reads tensor 'a' of stage 1");
  toy_close(&t);
}

OPI_TEST_MAIN("given cuts", OPI_TEST(test_the_syntax_is_read),
              OPI_TEST(test_consumers_move_behind_the_boundary),
              OPI_TEST(test_what_is_not_there_is_named), OPI_TEST(test_annotations_must_go_forward))
