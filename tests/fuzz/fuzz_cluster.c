/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads cluster files: any bytes are refused with a reason, or are a cluster in which
 * every link and collective has a time, and on which an order is played: copies once each or
 * together, to the same end.
 */
#include <math.h>

#include "partition/schedule/order.h"
#include "partition/study/simulate/order_play.h"
#include "tests/fuzz/must.h"
#include "tests/fuzz/seeds.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  static const char *const folders[] = {"partition/study/cluster/ready"};
  seeds_add(argc, argv, folders, OPI_COUNT(folders));
  return 0;
}

/* Two stages, so many tensor ranks and copies as there are devices for. */
static double play(const opi_cluster *c, const opi_order *order, bool apart) {
  const opi_stage_load load = {.forward_ns = 1e3,
                               .input_ns = 1e3,
                               .weight_ns = 1e3,
                               .step_ns = 100,
                               .send_bytes = 1e4,
                               .stash_bytes = 1e4,
                               .gradient_bytes = 1e6,
                               .tensor_sums = 2,
                               .tensor_bytes = 1e4};
  const opi_stage_load loads[] = {load, load};
  const opi_order_play how = {.cluster = c,
                              .stages = loads,
                              .n_tensor = c->n_devices < 4 ? 1 : 2,
                              .n_data = c->n_devices < 8    ? 1
                                        : c->n_devices < 64 ? 2
                                                            : 16,
                              .scattered = c->n_nodes % 2 == 0,
                              .sharded = c->n_tiers % 2 == 0,
                              .apart = apart};
  opi_order_played played;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_arena arena;
  double ns = -1;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const opipe_status status =
      opi_order_play_run(&order->problem, order->list, &how, &arena, &played, &err);
  must(status == OPIPE_OK, err.message);
  ns = played.step_ns;
  must(isfinite(ns) && ns >= 9e3, "a step that is no time");
  opi_order_played_release(&played, order->list);
  opi_arena_release(&arena);
  return ns;
}

static void play_both(const opi_cluster *c) {
  static const char text[] = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n";
  const opi_lowering how = {.receive_depth = 1};
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *order = NULL, *lowered = NULL;
  if (c->n_devices < 2)
    return;
  must(opi_order_read(text, sizeof text - 1, OPI_DIALECT_OPIPE, opi_allocator_system(), &order,
                      &err) == OPIPE_OK &&
           opi_order_lower(order, &how, opi_allocator_system(), &lowered, &err) == OPIPE_OK,
       err.message);
  const double one = play(c, lowered, false), all = play(c, lowered, true);
  must(fabs(one - all) <= 1e-6 * all, "copies that are played once end elsewhere");
  opi_order_free(lowered);
  opi_order_free(order);
}

static void use(const opi_cluster *c) {
  uint32_t devices[64], n = c->n_devices < 64 ? c->n_devices : 64;
  opipe_error err = OPIPE_ERROR_INIT;
  for (uint32_t i = 0; i < n; ++i) {
    uint32_t ports[2 * OPI_TIERS_MOST], n_out = 0;
    const uint32_t far = c->n_devices - 1 - i;
    devices[i] = (uint32_t)((uint64_t)i * c->n_devices / n);
    const double ns = opi_cluster_message_ns(c, i, far, 1 << 20);
    must(isfinite(ns) && ns >= 0, "a message without a time");
    const uint32_t n_ports = opi_cluster_path(c, i, far, ports, &n_out);
    must(n_out <= n_ports, "ports");
    for (uint32_t p = 0; p < n_ports; ++p)
      must(ports[p] < c->n_ports, "a port that there is not");
    must(opi_cluster_flops(c, i, OPIPE_FLOAT16, 64) >= 0, "a rate");
  }
  for (uint32_t op = 0; op < OPI_OPS; ++op) {
    const opi_groups groups = {devices, n, 1};
    double ns = -1;
    const opipe_status status = opi_cluster_collective_ns(
        c, op, OPI_COLLECTIVE_AUTO, &groups, 1 << 20, opi_allocator_system(), &ns, &err);
    must(status == OPIPE_OK && isfinite(ns) && ns >= 0, "a collective without a time");
  }
  play_both(c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  opipe_error err = OPIPE_ERROR_INIT;
  opi_cluster cluster;
  opi_arena arena;
  opi_arena_init(&arena, opi_allocator_system(), 0);
  const opipe_status status = opi_cluster_read("input", data, size, &arena, &cluster, &err);
  must(status >= 0 || err.message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err.message);
  if (status == OPIPE_OK)
    use(&cluster);
  opi_arena_release(&arena);
  return 0;
}
