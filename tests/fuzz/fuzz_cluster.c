/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads cluster files: any bytes are refused with a reason, or are a cluster in which
 * every link and collective has a time.
 */
#include <math.h>

#include "partition/cluster/cluster.h"
#include "tests/fuzz/must.h"

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
