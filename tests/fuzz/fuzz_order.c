/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzes what reads schedules: text, CSV in three dialects, JSON. An order that can be read is
 * printed and read again, alike; it goes through every pass, the proof and the simulation, which
 * accept it or say why not.
 */
#include "partition/schedule/draw.h"
#include "partition/schedule/order.h"
#include "partition/schedule/passes.h"
#include "tests/fuzz/must.h"

enum { ITEMS_MOST = 4096, UNITS_MOST = 1 << 16, STAGES_MOST = 64 };

static void told(opipe_status status, const opipe_error *err) {
  must(status >= 0 || err->message[0] != '\0', "a status without a message");
  must(status != OPIPE_E_INTERNAL, err->message);
}

static void reread(const opi_order *order, uint32_t format) {
  opi_order *again = NULL;
  opi_text first, second;
  opipe_error err = OPIPE_ERROR_INIT;
  opi_text_init(&first, opi_allocator_system());
  opi_text_init(&second, opi_allocator_system());
  const opipe_status written = opi_order_write(order, format, OPI_DIALECT_OPIPE, &first, &err);
  told(written, &err);
  const opipe_status status =
      opi_order_read(first.data, first.n, OPI_DIALECT_OPIPE, opi_allocator_system(), &again, &err);
  must(status >= 0, err.message);
  told(opi_order_write(again, format, OPI_DIALECT_OPIPE, &second, &err), &err);
  must(first.n == second.n && memcmp(first.data, second.data, first.n) == 0,
       "an order that is printed otherwise when it was read again");
  opi_order_free(again);
  opi_text_release(&first);
  opi_text_release(&second);
}

/* A list that a pass makes of one that is whole is whole. */
static void whole(const opi_problem *problem, opipe_status status, opi_do_list *list,
                  opipe_error *err) {
  told(status, err);
  if (status >= 0)
    must(opi_pass_check(problem, list, opi_allocator_system(), err) >= 0, err->message);
  opi_do_list_free(list);
}

/* Groups beside those of the header, and stashes that leave. */
static void move(const opi_order *order, const opi_order *lowered) {
  static const bool stages[STAGES_MOST] = {true, false, true, true};
  const opipe_allocator *allocator = opi_allocator_system();
  const uint32_t n_moved = opi_do_list_count(order->list, 1u << OPI_DO_OFFLOAD);
  opipe_error err = OPIPE_ERROR_INIT;
  opi_do_list *list = NULL;
  opi_problem problem = lowered->problem;
  if (problem.n_stages <= STAGES_MOST && n_moved == 0) {
    const opipe_status status =
        opi_pass_offload(&order->problem, order->list, stages, allocator, &list, &err);
    whole(&order->problem, status, list, &err);
  }
  list = NULL;
  problem.n_tensor = 2;
  problem.n_copies = 3;
  problem.sequence = !problem.sequence;
  const opipe_status status = opi_pass_groups(&problem, lowered->list, allocator, &list, &err);
  whole(&problem, status, list, &err);
}

static void use(const opi_order *order) {
  const opipe_allocator *allocator = opi_allocator_system();
  opipe_error err = OPIPE_ERROR_INIT;
  opi_order *lowered = NULL, *aligned = NULL;
  opi_do_list *list = NULL;
  opi_text text;
  for (uint32_t depth = 0; depth < 3; ++depth) {
    const opi_lowering how = {.receive_depth = depth};
    const opipe_status status = opi_order_lower(order, &how, allocator, &lowered, &err);
    told(status, &err);
    for (uint32_t rule = 0; rule < OPI_RULES; ++rule) {
      opi_proof proof = {0};
      const opi_order *o = lowered != NULL ? lowered : order;
      const opipe_status proven =
          opi_proof_check(&o->problem, o->list, rule, allocator, &proof, &err);
      told(proven, &err);
      must(status < 0 || depth > 0 || proven >= 0 || order->problem.versions != OPIPE_VERSIONS_ONE,
           err.message); /* early receives always hold */
    }
    if (lowered != NULL)
      move(order, lowered);
    opi_order_free(lowered);
    lowered = NULL;
  }
  told(opi_order_align(order, allocator, &aligned, &err), &err);
  opi_order_free(aligned);
  if (opi_pass_unshard(order->list, 2, allocator, &list, &err) >= 0)
    opi_do_list_free(list);
  list = NULL;
  if (opi_pass_split(order->list, allocator, &list, &err) >= 0)
    opi_do_list_free(list);
  opi_text_init(&text, allocator);
  told(opi_draw_order(&order->problem, order->list, &opi_unit_costs, allocator, &text, &err), &err);
  opi_text_release(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  opi_order *order = NULL;
  opipe_error err = OPIPE_ERROR_INIT;
  if (size == 0)
    return 0;
  const opipe_status status = opi_order_read((const char *)data + 1, size - 1, data[0] % 3u,
                                             opi_allocator_system(), &order, &err);
  told(status, &err);
  if (status < 0)
    return 0;
  const opi_problem *p = &order->problem;
  reread(order, OPI_ORDER_TEXT);
  reread(order, OPI_ORDER_CSV);
  reread(order, OPI_ORDER_JSON);
  if (order->list->n_items <= ITEMS_MOST &&
      (uint64_t)p->n_stages * p->n_microbatches <= UNITS_MOST && p->n_slices * p->n_parts <= 16)
    use(order);
  opi_order_free(order);
  return 0;
}
