/* SPDX-License-Identifier: Apache-2.0 */
/* Clusters as values: files of version 1 with and without nodes and tiers, links and ports between
 * devices, times of collectives against their closed forms, ready clusters by name, refusals.
 */
#include <math.h>
#include <stdio.h>

#include "partition/study/cluster/cluster.h"
#include "tests/support/support.h"

static opipe_error err = OPIPE_ERROR_INIT;
static opi_arena arena;

static opipe_status read_text(const char *text, opi_cluster *out) {
  opi_arena_init(&arena, opi_allocator_system(), 0);
  return opi_cluster_read("the file", text, strlen(text), &arena, out, &err);
}

static bool is_near(double found, double wanted) {
  return fabs(found - wanted) <= 1e-9 * fabs(wanted);
}

#define CHECK_NEAR(found, wanted)                                                             \
  opi_test_check(is_near(found, wanted), __FILE__, __LINE__, false, "%s is %.17g, not %.17g", \
                 #found, (double)(found), (double)(wanted))

#define HEAD "{\"format\": \"onnx-pipe cluster 1\", "
#define GPU "\"kind\": \"x\", \"alignment\": 256, \"flops\": 1e12"
/* 3 nodes of 4 devices; pairs, nodes, two nodes, all. */
#define DEEP                                                                    \
  HEAD "\"nodes\": 3, \"devices\": [{" GPU                                      \
       ", \"count\": 4, \"index\": 0, \"domain\": 1}], "                        \
       "\"tiers\": [{\"devices\": 2, \"latency_ns\": 1, \"bandwidth\": 4e9},"   \
       " {\"nodes\": 1, \"latency_ns\": 2, \"bandwidth\": 2e9},"                \
       " {\"nodes\": 2, \"latency_ns\": 3, \"bandwidth\": 1e9, \"port\": 2e9}," \
       " {\"latency_ns\": 4, \"bandwidth\": 1e9, \"oversubscription\": 16}]}"

/* ---- reading ---- */

static void test_without_tiers(void) {
  opi_cluster c;
  OPI_ASSERT_OK_FATAL(
      read_text(HEAD "\"devices\": [{" GPU ", \"count\": 3}], \"links\": [{\"transport\": \"t\", "
                     "\"rule\": \"tag\", \"latency_ns\": 7, \"bandwidth\": 2e9}]}",
                &c),
      &err);
  const opi_cluster_link link = opi_cluster_link_of(&c, 0, 2);
  OPI_ASSERT_INT(c.n_nodes, 1);
  OPI_ASSERT_INT(c.n_tiers, 1);
  OPI_ASSERT_INT(link.tier, 0);
  CHECK_NEAR(link.latency_ns, 7);
  CHECK_NEAR(opi_cluster_message_ns(&c, 0, 2, 1000), 7 + 500);
  CHECK_NEAR(opi_cluster_message_ns(&c, 1, 1, 1000), 0);
  OPI_ASSERT_INT(opi_cluster_link_of(&c, 1, 1).tier, OPIPE_NONE);
  CHECK_NEAR(opi_cluster_flops(&c, 0, OPIPE_FLOAT16, 64), 1e12);
  opi_arena_release(&arena);
}

static void test_nodes_and_tiers(void) {
  static const struct {
    uint32_t src, dst, tier, n_ports, n_out;
    double latency, rate;
  } pairs[] = {{0, 1, 0, 2, 1, 1, 4},    {0, 2, 1, 2, 1, 2, 2},  {1, 7, 2, 2, 1, 3, 1},
               {0, 11, 3, 4, 2, 4, 0.5}, {8, 11, 1, 2, 1, 2, 2}, {10, 11, 0, 2, 1, 1, 4},
               {11, 4, 3, 4, 2, 4, 0.25}};
  opi_cluster c;
  OPI_ASSERT_OK_FATAL(read_text(DEEP, &c), &err);
  OPI_ASSERT_INT(c.n_devices, 12);
  OPI_ASSERT_INT(c.n_nodes, 3);
  OPI_ASSERT_INT(c.devices[6].index, 2);
  OPI_ASSERT(c.descriptions[3].domain == 1 && c.descriptions[4].domain == 3);
  for (uint32_t t = 0; t < c.n_tiers; ++t) {
    static const uint32_t members[] = {12, 12, 3, 2}, groups[] = {6, 3, 2, 1};
    OPI_ASSERT_INT(c.tiers[t].n_members, members[t]);
    OPI_ASSERT_INT(c.tiers[t].n_groups, groups[t]);
  }
  for (size_t i = 0; i < OPI_COUNT(pairs); ++i) {
    uint32_t ports[2 * OPI_TIERS_MOST], n_out = 0;
    const opi_cluster_link link = opi_cluster_link_of(&c, pairs[i].src, pairs[i].dst);
    OPI_ASSERT_INT(link.tier, pairs[i].tier);
    CHECK_NEAR(link.latency_ns, pairs[i].latency);
    OPI_ASSERT_INT(opi_cluster_path(&c, pairs[i].src, pairs[i].dst, ports, &n_out),
                   pairs[i].n_ports);
    OPI_ASSERT_INT(n_out, pairs[i].n_out);
    if (link.tier < 3)
      CHECK_NEAR(link.bytes_per_ns, pairs[i].rate);
  }
  /* the far group has one node of 4 devices, the other two nodes: ports of 8 and 4 GB/s over 16 */
  CHECK_NEAR(opi_cluster_link_of(&c, 0, 11).bytes_per_ns, 0.25);
  CHECK_NEAR(c.tiers[3].port_bytes_per_ns[0], 0.5);
  opi_arena_release(&arena);
}

static void test_rates(void) {
  opi_cluster c;
  OPI_ASSERT_OK_FATAL(read_text(HEAD "\"devices\": [{" GPU ", \"rates\": ["
                                     "{\"dtype\": \"fp16\", \"least\": 512, \"flops\": 5e12},"
                                     "{\"dtype\": \"fp16\", \"least\": 64, \"flops\": 2e12}]}]}",
                                &c),
                      &err);
  CHECK_NEAR(opi_cluster_flops(&c, 0, OPIPE_FLOAT16, 511), 2e12);
  CHECK_NEAR(opi_cluster_flops(&c, 0, OPIPE_FLOAT16, 512), 5e12);
  CHECK_NEAR(opi_cluster_flops(&c, 0, OPIPE_FLOAT16, 1), 2e12);
  CHECK_NEAR(opi_cluster_flops(&c, 0, OPIPE_BFLOAT16, 512), 1e12);
  opi_arena_release(&arena);
}

static void test_unlike_nodes(void) {
  opi_cluster c;
  OPI_ASSERT_OK_FATAL(read_text(HEAD "\"nodes\": [{\"count\": 2, \"devices\": [{" GPU "}]}, "
                                     "{\"devices\": [{" GPU ", \"count\": 3}]}]}",
                                &c),
                      &err);
  OPI_ASSERT_INT(c.n_devices, 5);
  OPI_ASSERT_INT(c.n_nodes, 3);
  OPI_ASSERT_INT(c.n_classes, 2);
  OPI_ASSERT(c.node_of[1] == 1 && c.node_of[2] == 2 && c.node_of[4] == 2);
  opi_arena_release(&arena);
}

/* ---- collectives ---- */

enum { N_BYTES = 1 << 20 };

static double time_of(const opi_cluster *c, uint32_t op, uint32_t algorithm,
                      const uint32_t *devices, uint32_t n, uint32_t n_groups) {
  double ns = -1;
  const opi_groups groups = {devices, n, n_groups};
  OPI_ASSERT_OK(opi_cluster_collective_ns(c, op, algorithm, &groups, N_BYTES,
                                          opi_allocator_system(), &ns, &err),
                &err);
  return ns;
}

/* One switch: Thakur, Rabenseifner and Gropp 2005, section 4. */
static void test_closed_forms(void) {
  const double alpha = 100, beta = 0.5; /* ns, ns per byte */
  const double n = N_BYTES;
  opi_cluster c;
  uint32_t d[16];
  for (uint32_t i = 0; i < 16; ++i)
    d[i] = 15 - i;
  OPI_ASSERT_OK_FATAL(
      read_text(HEAD "\"nodes\": 16, \"devices\": [{" GPU "}], \"tiers\": [{\"latency_ns\": 100, "
                     "\"bandwidth\": 2e9}]}",
                &c),
      &err);
  for (uint32_t r = 2; r <= 16; r *= 2) {
    const double log = log2(r), part = (r - 1.0) / r;
    CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, d, r, 1),
               2 * (r - 1) * alpha + 2 * part * n * beta);
    CHECK_NEAR(time_of(&c, OPI_OP_ALL_GATHER, OPI_COLLECTIVE_RING, d, r, 1),
               (r - 1) * alpha + part * n * beta);
    CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RABENSEIFNER, d, r, 1),
               2 * log * alpha + 2 * part * n * beta);
    CHECK_NEAR(time_of(&c, OPI_OP_REDUCE_SCATTER, OPI_COLLECTIVE_RABENSEIFNER, d, r, 1),
               log * alpha + part * n * beta);
    CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_TREE, d, r, 1),
               2 * log * (alpha + n * beta));
    CHECK_NEAR(time_of(&c, OPI_OP_BROADCAST, OPI_COLLECTIVE_TREE, d, r, 1),
               log * (alpha + n * beta));
    CHECK_NEAR(time_of(&c, OPI_OP_BROADCAST, OPI_COLLECTIVE_RING, d, r, 1),
               (log + r - 1) * alpha + 2 * part * n * beta);
  }
  /* 12 of them: four give to others first and have it back */
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RABENSEIFNER, d, 12, 1),
             2 * (alpha + n * beta) + 2 * 3 * alpha + 2 * 7.0 / 8 * n * beta);
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, d, 1, 1), 0);
  opi_arena_release(&arena);
}

/* 2 nodes of 4: 8 GB/s inside; a port of 2 GB/s, of which one message has 1, between. */
static void test_topology(void) {
  static const uint32_t all[] = {0, 1, 2, 3, 4, 5, 6, 7}, pairs[] = {0, 4, 1, 5, 2, 6, 3, 7};
  static const uint32_t unequal[] = {0, 1, 2, 4};
  const double n = N_BYTES;
  opi_cluster c;
  OPI_ASSERT_OK_FATAL(
      read_text(HEAD "\"nodes\": 2, \"devices\": [{" GPU ", \"count\": 4}], \"tiers\": ["
                     "{\"nodes\": 1, \"bandwidth\": 8e9, \"collective\": \"ring\"}, "
                     "{\"bandwidth\": 1e9, \"port\": 2e9}]}",
                &c),
      &err);
  const double ring = time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, all, 8, 1);
  CHECK_NEAR(ring, 2 * 7 * n / 8); /* as slow as the one message that crosses */
  const double inside = 2 * 3 * n / 4 / 8;
  /* four rings of two between the nodes share the port: half a GB/s each */
  const double between = 2 * (n / 4 / 2) / 0.5;
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_HIERARCHICAL, all, 8, 1),
             inside + between);
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_AUTO, all, 8, 1), inside + between);
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_AUTO, all, 4, 1), inside);
  /* one pair alone; two, which fill the port; four, which halve it */
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, pairs, 2, 1), n);
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, pairs, 2, 2), n);
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, pairs, 2, 4), 2 * n);
  /* three and one: to the first of the node in two rounds, between, and back */
  CHECK_NEAR(time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_HIERARCHICAL, unequal, 4, 1),
             2 * 2 * n / 8 + n);
  opi_groups bad = {(const uint32_t[]){1, 1}, 2, 1};
  double ns = 0;
  OPI_ASSERT_ERROR(opi_cluster_collective_ns(&c, 0, 0, &bad, 1, opi_allocator_system(), &ns, &err),
                   OPIPE_E_INVALID, &err, "device 1, twice");
  bad.devices = (const uint32_t[]){1, 8};
  OPI_ASSERT_ERROR(opi_cluster_collective_ns(&c, 0, 0, &bad, 1, opi_allocator_system(), &ns, &err),
                   OPIPE_E_INVALID, &err, "device 8, which does not exist");
  opi_arena_release(&arena);
}

/* ---- refusals ---- */

static void test_refusals(void) {
  static const struct {
    const char *text, *part;
    opipe_status status;
  } wrong[] = {
      {HEAD "\"nodes\": 0, \"devices\": [{" GPU "}]}", "\"nodes\": 0 nodes of 1 devices",
       OPIPE_E_LIMIT},
      {HEAD "\"nodes\": 2000, \"devices\": [{" GPU ", \"count\": 4}]}",
       "2000 nodes of 4 devices after 0; there must be 1 to 4096", OPIPE_E_LIMIT},
      {HEAD "\"nodes\": []}", "\"nodes\" is empty", OPIPE_E_INVALID},
      {HEAD "\"nodes\": [{\"devices\": []}]}", "nodes[0]: \"devices\" is empty", OPIPE_E_INVALID},
      {HEAD "\"nodes\": [{\"devices\": [{}]}]}", "nodes[0]: devices[0]: \"kind\" is missing",
       OPIPE_E_INVALID},
      {HEAD "\"nodes\": [{\"racks\": 1}]}", "nodes[0]: \"racks\" is no field", OPIPE_E_INVALID},
      {HEAD "\"nodes\": [{}], \"devices\": [{" GPU "}]}", "only one is allowed", OPIPE_E_INVALID},
      {HEAD "\"nodes\": 2, \"devices\": [{" GPU ", \"domain\": 4294967295}]}",
       "\"domain\" goes up to 4294967295", OPIPE_E_LIMIT},
      {HEAD "\"devices\": [{" GPU "}], \"tiers\": []}", "\"tiers\" has 0 entries", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU "}], \"tiers\": [{}]}", "tiers[0]: \"bandwidth\" is missing",
       OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU "}], \"tiers\": [{\"bandwidth\": 0.5}]}",
       "tiers[0]: \"bandwidth\" is 0.5; it must be from 1 to 1e+18", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU "}], \"tiers\": [{\"bandwidth\": 1e9, \"port\": 1e9, "
            "\"oversubscription\": 2}]}",
       "\"port\" is 1e+09 and \"oversubscription\" 2; only one is allowed", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU
            "}], \"tiers\": [{\"bandwidth\": 1e9, \"collective\": \"star\"}]}",
       "\"collective\" is 'star'; it must be auto, ring", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU "}], \"tiers\": [{\"bandwidth\": 1e9, \"nodes\": 1, \"devices\": "
            "1}]}",
       "it joins 1 \"devices\" and 1 \"nodes\"; only one is allowed", OPIPE_E_INVALID},
      {HEAD "\"nodes\": 4, \"devices\": [{" GPU "}], \"tiers\": [{\"bandwidth\": 1e9, \"nodes\": "
            "2}]}",
       "tiers[0]: it leaves 2 separate groups of 4 devices in 4 nodes", OPIPE_E_INVALID},
      {HEAD "\"nodes\": 4, \"devices\": [{" GPU "}], \"tiers\": [{\"bandwidth\": 1e9, \"nodes\": "
            "2}, {\"bandwidth\": 1e9, \"devices\": 2}]}",
       "tiers[1]: it joins 2 devices or 0 nodes", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU ", \"rates\": [{\"dtype\": \"half\", \"flops\": 1}]}]}",
       "rates[0]: \"dtype\" is 'half'; known types are fp64", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU ", \"rates\": [{\"dtype\": \"fp16\"}]}]}",
       "rates[0]: \"flops\" is missing", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU ", \"rates\": [{\"dtype\": \"fp16\", \"flops\": 1}, "
            "{\"dtype\": \"fp16\", \"flops\": 2}]}]}",
       "two \"rates\" of type float16 and \"least\" 0: 1 and 2", OPIPE_E_INVALID},
      {HEAD "\"devices\": [{" GPU "}], \"links\": [{\"transport\": \"t\", \"rule\": \"tag\", "
            "\"occupies\": \"node\"}]}",
       "\"occupies\" is 'node'; it must be link or rank", OPIPE_E_INVALID},
  };
  for (size_t i = 0; i < OPI_COUNT(wrong); ++i) {
    opi_cluster c;
    OPI_ASSERT_ERROR(read_text(wrong[i].text, &c), wrong[i].status, &err, wrong[i].part);
    OPI_ASSERT(strncmp(err.message, "the file: ", 10) == 0);
    opi_arena_release(&arena);
  }
}

/* ---- by name ---- */

static void test_ready(void) {
  static const char *const names[] = {"piz-daint",   "config-a", "config-b", "config-c",
                                      "p3.16xlarge", "selene",   "h100",     "h200"};
  char folder[1024], path[1100];
  (void)snprintf(folder, sizeof folder, "%s", opi_test_source("partition/study/cluster/ready"));
  (void)snprintf(path, sizeof path, "%s/h100.json:nodes=7", folder);
  const char *const folders[] = {"/nonexistent", folder};
  opi_text text;
  opi_cluster c;
  for (size_t i = 0; i < OPI_COUNT(names); ++i) {
    char spec[64];
    (void)snprintf(spec, sizeof spec, "%s:nodes=%u", names[i], 24);
    opi_text_init(&text, opi_allocator_system());
    OPI_ASSERT_OK_FATAL(opi_cluster_find(spec, folders, 2, &text, &err), &err);
    OPI_ASSERT_OK_FATAL(read_text(text.data, &c), &err);
    OPI_ASSERT_INT(c.n_nodes, 24);
    OPI_ASSERT(c.name != NULL && strcmp(c.name, names[i]) == 0);
    OPI_ASSERT(c.descriptions[0].memory_bytes > 0 && c.descriptions[0].flops > 0);
    OPI_ASSERT(opi_cluster_flops(&c, 0, OPIPE_FLOAT, 2048) <= c.descriptions[0].flops);
    OPI_ASSERT(opi_cluster_link_of(&c, 0, c.n_devices - 1).bytes_per_ns > 0);
    opi_text_release(&text);
    opi_arena_release(&arena);
  }
  opi_text_init(&text, opi_allocator_system());
  OPI_ASSERT_OK(opi_cluster_find(path, folders, 2, &text, &err), &err);
  OPI_ASSERT_OK(read_text(text.data, &c), &err);
  OPI_ASSERT_INT(c.n_devices, 56);
  opi_arena_release(&arena);
  OPI_ASSERT_ERROR(opi_cluster_find("selen", folders, 2, &text, &err), OPIPE_E_NOTFOUND, &err,
                   "config-a, config-b, config-c, h100, h200, p3.16xlarge, piz-daint, selene");
  OPI_ASSERT_ERROR(opi_cluster_find("h100:nodes=x", folders, 2, &text, &err), OPIPE_E_INVALID, &err,
                   "nodes=x; it must be from 1 to 4096");
  OPI_ASSERT_ERROR(opi_cluster_find("../ready/h100", folders, 2, &text, &err), OPIPE_E_NOTFOUND,
                   &err, "there is no cluster");
  opi_text_release(&text);
}

/* Selene's last row: groups that do the same at once, of 3,072 devices. */
static void test_large(void) {
  static uint32_t devices[3072];
  char folder[1024];
  (void)snprintf(folder, sizeof folder, "%s", opi_test_source("partition/study/cluster/ready"));
  const char *const folders[] = {folder};
  opi_text text;
  opi_cluster c;
  opi_text_init(&text, opi_allocator_system());
  OPI_ASSERT_OK_FATAL(opi_cluster_find("selene:nodes=384", folders, 1, &text, &err), &err);
  OPI_ASSERT_OK_FATAL(read_text(text.data, &c), &err);
  for (uint32_t g = 0; g < 512; ++g) {
    for (uint32_t i = 0; i < 6; ++i)
      devices[g * 6 + i] = i * 512 + g;
  }
  const double all = time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, devices, 6, 512);
  const double one = time_of(&c, OPI_OP_ALL_REDUCE, OPI_COLLECTIVE_RING, devices, 6, 1);
  CHECK_NEAR(one, 10 * (7000 + N_BYTES / 6.0 / c.tiers[2].bytes_per_ns));
  CHECK_NEAR(all, one); /* every device has a port of its own out of the node */
  opi_text_release(&text);
  opi_arena_release(&arena);
}

OPI_TEST_MAIN("cluster", OPI_TEST(test_without_tiers), OPI_TEST(test_nodes_and_tiers),
              OPI_TEST(test_rates), OPI_TEST(test_unlike_nodes), OPI_TEST(test_closed_forms),
              OPI_TEST(test_topology), OPI_TEST(test_refusals), OPI_TEST(test_ready),
              OPI_TEST(test_large))
