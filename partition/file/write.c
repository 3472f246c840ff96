/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a plan as JSON. The same plan gives the same bytes: members have a fixed order, numbers
 * are the shortest exact ones, and there is no clock and no host name. Written as decisions, it
 * lacks everything that is only predicted; the hash is computed over that form. */
#include <inttypes.h>

#include "partition/file/devices.h"
#include "partition/file/file.h"
#include "partition/file/generation.h"
#include "partition/file/kernels.h"
#include "partition/file/offload.h"
#include "partition/file/playlist.h"
#include "partition/file/states.h"
#include "partition/file/train.h"
#include "partition/file/ways.h"
#include "partition/schedule/compute_order.h"
#include "partition/schedule/order.h"

static void write_dims(opi_text *t, const opi_decision *plan) {
  opi_text_puts(t, "  \"dims\": {");
  for (uint32_t i = 0; i < plan->binding.n_dims; ++i) {
    if (i != 0)
      opi_text_puts(t, ", ");
    opi_text_json(t, plan->binding.dims[i].name);
    opi_text_printf(t, ": %" PRId64, plan->binding.dims[i].value);
  }
  opi_text_puts(t, "},\n");
}

static void write_shape(opi_text *t, const int64_t *shape, uint32_t rank) {
  opi_text_puts(t, "[");
  for (uint32_t d = 0; d < rank; ++d)
    opi_text_printf(t, "%s%" PRId64, d == 0 ? "" : ", ", shape[d]);
  opi_text_puts(t, "]");
}

static void write_pins(opi_text *t, const opi_decision *plan) {
  opi_text_puts(t, "  \"pins\": [");
  for (uint32_t i = 0; i < plan->binding.n_pins; ++i) {
    const opi_pin *pin = &plan->binding.pins[i];
    uint64_t n_bytes = 0;
    (void)opi_tensor_bytes(pin->dtype, pin->shape, pin->rank, &n_bytes);
    opi_text_puts(t, i == 0 ? "\n    {\"input\": " : ",\n    {\"input\": ");
    opi_text_json(t, pin->input);
    opi_text_printf(t, ", \"dtype\": %u, \"shape\": ", pin->dtype);
    write_shape(t, pin->shape, pin->rank);
    opi_text_puts(t, ", \"bytes\": \"");
    for (uint64_t b = 0; b < n_bytes; ++b)
      opi_text_printf(t, "%02x", ((const uint8_t *)pin->data)[b]);
    opi_text_puts(t, "\"}");
  }
  opi_text_puts(t, plan->binding.n_pins == 0 ? "],\n" : "\n  ],\n");
}

static void write_barriers(opi_text *t, const opi_decision *plan) {
  opi_text_puts(t, "  \"keep\": [");
  for (uint32_t i = 0; i < plan->binding.n_barriers; ++i) {
    if (i != 0)
      opi_text_puts(t, ", ");
    opi_text_json(t, plan->binding.barriers[i]);
  }
  opi_text_puts(t, "],\n");
}

static void write_devices(opi_text *t, const opi_decision *plan, bool decisions) {
  opi_text_puts(t, "  \"devices\": [");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    opi_text_puts(t, r == 0 ? "\n    " : ",\n    ");
    opi_json_write_device(t, &plan->devices[r], decisions);
  }
  opi_text_puts(t, "\n  ],\n");
}

static void write_schedule(opi_text *t, const opi_decision *plan, bool decisions) {
  opi_text_puts(t, "  \"schedule\": ");
  opi_text_json(t, plan->schedule.name);
  opi_text_puts(t, ",\n  \"settings\": {");
  for (uint32_t i = 0; i < plan->schedule.n_settings; ++i) {
    if (i != 0)
      opi_text_puts(t, ", ");
    opi_text_json(t, plan->schedule.settings[i].key);
    opi_text_puts(t, ": ");
    opi_text_json(t, plan->schedule.settings[i].value);
  }
  opi_text_puts(t, "},\n  \"transport\": ");
  opi_text_json(t, plan->transport);
  opi_text_puts(t, ",\n  \"link\": ");
  opi_json_write_link(t, &plan->link, decisions);
  opi_text_printf(t, ",\n  \"microbatches\": %u,\n  \"in_flight\": %u,\n  \"depth\": %u,\n",
                  plan->n_microbatches, plan->in_flight, plan->depth);
  if (plan->binding.batch_dim != NULL) {
    opi_text_puts(t, "  \"batch_dim\": ");
    opi_text_json(t, plan->binding.batch_dim);
    opi_text_printf(t, ",\n  \"batch_rows\": %" PRId64 ",\n", plan->binding.batch_rows);
  }
}

static void write_stages(opi_text *t, const opi_plan *plan, bool decisions) {
  opi_text_puts(t, "  \"stages\": [");
  for (uint32_t s = 0; s < plan->decided.n_stages; ++s) {
    bool first = true;
    opi_text_printf(t, "%s\n    {\"rank\": %u", s == 0 ? "" : ",",
                    opi_plan_rank(&plan->decided, s, 0));
    if (!decisions) {
      opi_text_puts(t, ", \"time_ns\": ");
      opi_json_double(t, plan->predicted.times.stage_ns[s]);
      if (plan->predicted.stage_stash_bytes != NULL)
        opi_text_printf(t, ", \"stash_bytes\": %" PRIu64, plan->predicted.stage_stash_bytes[s]);
    }
    opi_text_puts(t, ", \"nodes\": [");
    for (uint32_t n = 0; n < plan->decided.n_nodes; ++n) {
      if (plan->decided.stage_of_node[n] != s)
        continue;
      if (!first)
        opi_text_puts(t, ", ");
      first = false;
      opi_text_json(t, plan->decided.node_keys[n]);
    }
    opi_text_puts(t, "]}");
  }
  opi_text_puts(t, "\n  ],\n");
}

/* One line per rank, in the grammar of orders (partition/schedule/cell.c). */
static void write_actions(opi_text *t, const opi_decision *plan) {
  static const opi_cell_form form = {" ", "-", "", OPI_DIALECT_OPIPE};
  const opi_problem problem = opi_plan_problem(plan);
  opi_text_puts(t, "  \"actions\": [");
  for (uint32_t r = 0; r < plan->n_ranks; ++r) {
    opi_text_puts(t, r == 0 ? "\n    \"" : ",\n    \"");
    for (uint32_t a = plan->rank_first[r], n; a < plan->rank_first[r + 1]; a += n) {
      opi_do cell[2];
      n = (plan->actions[a].flags & OPIPE_ACTION_OVERLAP_NEXT) != 0 &&
                  a + 1 < plan->rank_first[r + 1]
              ? 2
              : 1;
      for (uint32_t i = 0; i < n; ++i)
        (void)opi_do_of_record(&plan->actions[a + i], &cell[i]);
      opi_text_puts(t, a == plan->rank_first[r] ? "" : " ");
      opi_cells_write(t, &problem, cell, n, &form);
    }
    opi_text_puts(t, "\"");
  }
  opi_text_puts(t, "\n  ]");
}

/* Lets plans be compared by their files alone. */
static void write_crossings(opi_text *t, const opi_plan *plan) {
  opi_text_puts(t, ",\n  \"crossings\": [");
  for (uint32_t i = 0; i < plan->predicted.n_crossings; ++i) {
    const opi_crossing *c = &plan->predicted.crossings[i];
    opi_text_printf(
        t, "%s\n    {\"from\": %u, \"to\": %u, \"bytes\": %" PRIu64 ", \"message_bytes\": %" PRIu64,
        i == 0 ? "" : ",", c->src_stage, c->dst_stage, c->n_bytes, c->message_bytes);
    if (c->whole_bytes != 0)
      opi_text_printf(t, ", \"whole_bytes\": %" PRIu64, c->whole_bytes);
    opi_text_puts(t, ", \"tensor\": ");
    opi_text_json(t, c->name);
    opi_text_puts(t, "}");
  }
  opi_text_puts(t, plan->predicted.n_crossings == 0 ? "]" : "\n  ]");
}

/* Follows from the model's file; recomputed when a plan is read. */
static void write_few_bits(opi_text *t, const opi_plan *plan) {
  for (uint32_t i = 0; i < plan->predicted.n_few_bits; ++i) {
    const opi_few_bits *form = &plan->predicted.few_bits[i];
    opi_text_printf(t, "%s\n    {\"bits\": %u, \"accuracy_level\": %" PRId64 ", \"products\": %u}",
                    i == 0 ? ",\n  \"few_bits\": [" : ",", form->bits, form->level, form->n);
  }
  opi_text_puts(t, plan->predicted.n_few_bits == 0 ? "" : "\n  ]");
}

static void write_memory(opi_text *t, const opi_plan *plan) {
  opi_text_puts(t, ",\n  \"memory\": [");
  for (uint32_t r = 0; r < plan->decided.n_ranks; ++r) {
    const opi_memory *m = &plan->predicted.memory[r];
    opi_text_printf(t,
                    "%s\n    {\"params_bytes\": %" PRIu64 ", \"activation_bytes\": %" PRIu64
                    ", \"workspace_bytes\": %" PRIu64 ", \"boundary_bytes\": %" PRIu64
                    ", \"total_bytes\": %" PRIu64 ", \"mapped_bytes\": %" PRIu64,
                    r == 0 ? "" : ",", m->params_bytes, m->activation_bytes, m->workspace_bytes,
                    m->boundary_bytes, m->total_bytes, m->mapped_bytes);
    if (opi_plan_trains(&plan->decided)) {
      opi_text_printf(t,
                      ", \"gradient_bytes\": %" PRIu64 ", \"optimizer_bytes\": %" PRIu64
                      ", \"version_bytes\": %" PRIu64 ", \"stash_bytes\": %" PRIu64,
                      m->gradient_bytes, m->optimizer_bytes, m->version_bytes, m->stash_bytes);
    }
    if (plan->decided.n_states != 0 || plan->decided.binding.generation.context != 0) {
      opi_text_printf(t, ", \"state_bytes\": %" PRIu64 ", \"stream_bytes\": %" PRIu64,
                      m->state_bytes, m->stream_bytes);
    }
    if (plan->decided.binding.generation.context != 0 && m->page_room != UINT64_MAX) {
      opi_text_printf(t, ", \"tokens\": %" PRIu64,
                      m->page_room * plan->decided.binding.generation.page);
    }
    if (plan->decided.n_offload != 0)
      opi_text_printf(t, ", \"offload_bytes\": %" PRIu64, m->offload_bytes);
    if (m->n_fallback != 0) {
      opi_text_printf(t, ", \"host_bytes\": %" PRIu64 ", \"fallback_nodes\": %" PRIu64,
                      m->host_bytes, m->n_fallback);
    }
    if (m->n_rounded != 0)
      opi_text_printf(t, ", \"rounded_products\": %" PRIu64, m->n_rounded);
    opi_text_puts(t, m->estimated ? ", \"estimated\": true}" : "}");
  }
  opi_text_puts(t, "\n  ]");
}

static void write_predictions(opi_text *t, const opi_plan *plan) {
  write_crossings(t, plan);
  write_memory(t, plan);
  opi_json_write_ways(t, plan);
  opi_text_puts(t, ",\n  \"request_ns\": ");
  opi_json_double(t, plan->predicted.request_ns);
  opi_text_puts(t, ",\n  \"interval_ns\": ");
  opi_json_double(t, plan->predicted.interval_ns);
  opi_text_puts(t, ",\n  \"bound_ns\": ");
  opi_json_double(t, plan->predicted.bound_ns);
  opi_text_printf(
      t, ",\n  \"cost\": \"%s\",\n  \"flops\": ", opi_cost_name(plan->predicted.cost_kind));
  opi_json_double(t, plan->predicted.flops);
  write_few_bits(t, plan);
  if (plan->predicted.searched.moves != 0) {
    opi_text_printf(t, ",\n  \"searched\": {\"moves\": %" PRIu64 ", \"start_ns\": ",
                    plan->predicted.searched.moves);
    opi_json_double(t, plan->predicted.searched.start_ns);
    opi_text_puts(t, ", \"bound_ns\": ");
    opi_json_double(t, plan->predicted.searched.bound_ns);
    opi_text_puts(t, "}");
  }
  if (plan->predicted.planner != NULL) {
    opi_text_puts(t, ",\n  \"planner\": ");
    opi_text_json(t, plan->predicted.planner);
  }
  for (uint32_t r = 0; plan->predicted.cluster_devices != NULL && r < plan->decided.n_ranks; ++r) {
    opi_text_printf(t, "%s%u%s", r == 0 ? ",\n  \"cluster_devices\": [" : ", ",
                    plan->predicted.cluster_devices[r], r + 1 == plan->decided.n_ranks ? "]" : "");
  }
  if (plan->predicted.stopped != NULL) {
    opi_text_puts(t, ",\n  \"stopped\": ");
    opi_text_json(t, plan->predicted.stopped);
  }
  if (opi_plan_utilisation(plan) > 0) {
    opi_text_puts(t, ",\n  \"peak_flops\": ");
    opi_json_double(t, plan->predicted.peak_flops);
    opi_text_puts(t, ",\n  \"utilisation\": ");
    opi_json_double(t, opi_plan_utilisation(plan));
  }
  opi_json_write_playlist(t, plan);
}

static void write_binding(opi_text *t, const opi_decision *plan) {
  write_dims(t, plan);
  write_pins(t, plan);
  write_barriers(t, plan);
  if ((plan->binding.bind_flags & OPI_BIND_KEEP_PARAMETERS) != 0 && !opi_plan_trains(plan))
    opi_text_puts(t, "  \"keep_parameters\": true,\n"); /* training keeps them anyway */
  if ((plan->binding.bind_flags & OPI_BIND_NOISE) != 0) {
    opi_text_printf(t, "  \"noise\": %" PRIu32 ",\n",
                    plan->binding.bind_flags & (uint32_t)OPI_BIND_NOISE);
  }
  opi_text_printf(t, "  \"fuse\": %s,\n  \"dropout\": \"",
                  (plan->binding.bind_flags & OPI_BIND_NO_FUSE) != 0 ? "false" : "true");
  if (plan->binding.dropout == OPI_DROPOUT_RATIO)
    opi_json_double(t, plan->binding.dropout_ratio);
  else
    opi_text_puts(t, plan->binding.dropout == OPI_DROPOUT_GRAPH ? "graph" : "off");
  opi_text_puts(t, "\",\n");
}

static opipe_status write_plan(const opi_plan *plan, bool decisions, opipe_write_fn write,
                               void *ctx, opipe_error *err) {
  opi_text t;
  opi_text_init(&t, plan->decided.allocator);
  opi_text_puts(&t, "{\n  \"format\": \"" OPI_PLAN_FORMAT "\",\n");
  if (!decisions) {
    opi_text_printf(&t, "  \"hash\": \"%016" PRIx64 "%016" PRIx64 "\",\n", plan->hash[0],
                    plan->hash[1]);
  }
  opi_text_printf(&t, "  \"fingerprint\": \"%016" PRIx64 "%016" PRIx64 "\",\n",
                  plan->decided.fingerprint[0], plan->decided.fingerprint[1]);
  write_binding(&t, &plan->decided);
  write_devices(&t, &plan->decided, decisions);
  write_schedule(&t, &plan->decided, decisions);
  opi_json_write_states(&t, plan, decisions);
  opi_json_write_generation(&t, plan, decisions);
  opi_json_write_train(&t, plan, decisions);
  opi_json_write_tensor(&t, &plan->decided);
  opi_json_write_offload(&t, &plan->decided, decisions);
  write_stages(&t, plan, decisions);
  write_actions(&t, &plan->decided);
  if (!decisions) {
    write_predictions(&t, plan);
    opi_json_write_kernels(&t, plan);
  }
  opi_text_puts(&t, "\n}\n");
  const opipe_status status = opi_text_write(&t, write, ctx, err);
  opi_text_release(&t);
  return status;
}

opipe_status opi_plan_write(const opi_plan *plan, opipe_write_fn write, void *ctx,
                            opipe_error *err) {
  return write_plan(plan, false, write, ctx, err);
}

opipe_status opi_plan_write_decisions(const opi_plan *plan, opipe_write_fn write, void *ctx,
                                      opipe_error *err) {
  return write_plan(plan, true, write, ctx, err);
}
