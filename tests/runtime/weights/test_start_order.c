/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of two ranks start in one order on both, that in which their gradients became complete,
 * whichever of them a transport puts off: NCCL would wait for ever otherwise.
 */
#include "tests/runtime/weights/toy_weights.h"

enum { MOST = 8 };

struct opipe_endpoint {
  uint32_t rank;
};
struct opipe_memory {
  int none;
};
struct opipe_group {
  uint32_t rank, number;
};

static struct opipe_memory memory;
static uint32_t n_opened, n_put_off, begun[TW_RANKS][MOST], n_begun[TW_RANKS];

static opipe_status register_buffer(opipe_endpoint *e, opipe_buffer *b, uint64_t n,
                                    opipe_memory **out, opipe_error *err) {
  (void)e, (void)b, (void)n, (void)err;
  *out = &memory;
  return OPIPE_OK;
}

static void drop(opipe_memory *m) {
  (void)m;
}

/* The members of a group open it one after the other. */
static opipe_status group_open(opipe_endpoint *e, const uint32_t *ranks, uint32_t n_ranks,
                               uint64_t n_bytes, opipe_group **out, opipe_error *err) {
  (void)ranks, (void)n_bytes, (void)err;
  *out = calloc(1, sizeof **out);
  if (*out == NULL)
    return OPIPE_E_NOMEM;
  **out = (opipe_group){.rank = e->rank, .number = n_opened++ / n_ranks};
  return OPIPE_OK;
}

static void group_close(opipe_group *g) {
  free(g);
}

/* Rank 0's first sum is put off so many times. */
static opipe_status all_reduce(opipe_group *g, uint64_t round, const opipe_region *r, uint64_t n,
                               uint32_t dtype, opipe_event *ready, opipe_event *done,
                               opipe_error *err) {
  (void)round, (void)r, (void)n, (void)dtype, (void)ready, (void)done, (void)err;
  if (g->rank == 0 && n_begun[0] == 0 && n_put_off > 0) {
    --n_put_off;
    return OPIPE_PENDING;
  }
  begun[g->rank][n_begun[g->rank]++] = g->number;
  return OPIPE_OK;
}

static bool has_begun(uint32_t rank, uint32_t number) {
  for (uint32_t i = 0; i < n_begun[rank]; ++i) {
    if (begun[rank][i] == number)
      return true;
  }
  return false;
}

static opipe_status group_test(opipe_group *g, uint64_t round, opipe_error *err) {
  (void)round, (void)err;
  return has_begun(0, g->number) && has_begun(1, g->number) ? OPIPE_OK : OPIPE_PENDING;
}

static const opipe_transport transport = {
    .struct_size = (uint32_t)OPIPE_END(opipe_transport, notify),
    .memory_register = register_buffer,
    .memory_drop = drop,
    .group_open = group_open,
    .group_close = group_close,
    .all_reduce = all_reduce,
    .group_test = group_test};

/* Both ranks hold both stages; their gradients are complete in the order of `instances`. */
static void try_order(const uint32_t instances[4], uint32_t put_off) {
  struct opipe_endpoint ends[TW_RANKS] = {{0}, {1}};
  tw_place_set t;
  opipe_error err = OPIPE_ERROR_INIT;
  tw_setup(&t, 2, 2);
  t.options.transport = (opi_transport_ref){.table = &transport, .id = "toy"};
  for (uint32_t i = 0; i < 4; ++i)
    t.instances[i].endpoint = &ends[t.instances[i].rank];
  n_opened = n_begun[0] = n_begun[1] = 0;
  n_put_off = put_off;
  tw_open(&t);
  for (uint32_t r = 0; r < TW_RANKS; ++r)
    OPI_ASSERT_OK(opi_weights_begin(t.weights, r, &err), &err);
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT_OK(opi_weights_reduce(t.weights, instances[i], &err), &err);
  OPI_ASSERT_INT(opi_weights_starts(t.weights, 0), put_off >= 2);
  OPI_ASSERT_INT(n_begun[0], put_off >= 2 ? 0 : 2);
  for (uint32_t i = 0; i <= put_off; ++i) {
    for (uint32_t r = 0; r < TW_RANKS; ++r)
      OPI_ASSERT(opi_weights_progress(t.weights, r, &err) >= 0);
  }
  OPI_ASSERT(!opi_weights_starts(t.weights, 0));
  OPI_ASSERT_INT(n_begun[0], 2);
  OPI_ASSERT_INT(n_begun[1], 2);
  OPI_ASSERT(memcmp(begun[0], begun[1], 2 * sizeof begun[0][0]) == 0);
  for (uint32_t i = 0; i < 4; ++i)
    OPI_ASSERT(opi_weights_is_summed(t.weights, i));
  tw_end(&t);
}

/* Instances: stage * 2 + replica; rank 0 has 0 and 3, rank 1 has 1 and 2. */
static void test_one_order_whatever_is_put_off(void) {
  for (uint32_t put_off = 0; put_off < 6; ++put_off) {
    try_order((const uint32_t[]){0, 3, 1, 2}, put_off);
    try_order((const uint32_t[]){3, 0, 2, 1}, put_off);
    try_order((const uint32_t[]){2, 3, 1, 0}, put_off);
  }
}

OPI_TEST_MAIN("start order", OPI_TEST(test_one_order_whatever_is_put_off))
