/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies as values, and functions that planners share. */
#include "partition/study/planners/strategy.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "loader/base/json.h"

enum { BATCH_MOST = 1 << 24 };

/* ---- the question ---- */

static opipe_status check_nodes(const char *planner, const opi_cluster *c, uint32_t n,
                                opi_machine *out, opipe_error *err) {
  uint32_t per_node = 0;
  for (uint32_t i = 0, run = 0; i < n; ++i) {
    const bool ends = i + 1 == n || c->node_of[i + 1] != c->node_of[i];
    ++run;
    if (!ends)
      continue;
    per_node = per_node == 0 ? run : per_node;
    if (run != per_node) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "planner '%s': node %u has %u of the %u devices, the first %u; it supports "
                      "equal nodes only",
                      planner, c->node_of[i], run, n, per_node);
    }
    ++out->n_nodes;
    run = 0;
  }
  out->per_node = per_node;
  return OPIPE_OK;
}

/* Compares measured rates, which are never exactly equal, or costs of layers. */
static bool near(double a, double b) {
  enum {
    OFF_MOST = 4
  }; /* divisor of the larger: tolerance for what a first block has beyond others */
  return fabs(a - b) * OFF_MOST <= fmax(a, b);
}

/* True if products take about as long on both devices. */
static bool same_rates(const opi_cluster *c, uint32_t a, uint32_t b) {
  const opi_device_class *classes[] = {&c->classes[c->class_of[a]], &c->classes[c->class_of[b]]};
  for (size_t k = 0; k < OPI_COUNT(classes); ++k) {
    for (uint32_t i = 0; i < classes[k]->n_rates; ++i) {
      const opi_rate *r = &classes[k]->rates[i];
      if (!near(opi_cluster_flops(c, a, r->dtype, r->least),
                opi_cluster_flops(c, b, r->dtype, r->least)))
        return false;
    }
  }
  return true;
}

/* Layer times are those of the first device, so the others must be like it. */
static opipe_status check_kinds(const char *planner, const opi_cluster *c, uint32_t n,
                                opipe_error *err) {
  const opipe_device_description *first = &c->descriptions[0];
  for (uint32_t i = 1; i < n; ++i) {
    const opipe_device_description *d = &c->descriptions[i];
    if (c->class_of[i] == c->class_of[0] ||
        (d->flops == first->flops && d->bandwidth == first->bandwidth &&
         d->launch_ns == first->launch_ns && same_rates(c, 0, i)))
      continue;
    return opi_fail(
        err, OPIPE_E_INVALID,
        "planner '%s': device %u of the %u has %g operations and %g bytes per second, "
        "%g ns a launch, device 0 %g, %g and %g; it supports equal devices only (planner "
        "'auto' supports others)",
        planner, i, n, opi_cluster_flops(c, i, OPIPE_FLOAT, UINT64_MAX), d->bandwidth, d->launch_ns,
        opi_cluster_flops(c, 0, OPIPE_FLOAT, UINT64_MAX), first->bandwidth, first->launch_ns);
  }
  return OPIPE_OK;
}

static void read_link(const opi_cluster *c, uint32_t a, uint32_t b, opi_reach *out) {
  const opi_cluster_link link = opi_cluster_link_of(c, a, b);
  if (link.tier == OPIPE_NONE)
    return;
  const opi_tier *tier = &c->tiers[link.tier];
  out->bytes_per_ns = link.bytes_per_ns;
  out->latency_ns = link.latency_ns;
  out->port_bytes_per_ns = tier->in_node ? 0 : tier->port_bytes_per_ns[tier->member_of[a]];
  out->sum_bytes_per_ns =
      tier->collective_bytes_per_ns > 0 ? tier->collective_bytes_per_ns : link.bytes_per_ns;
  out->sum_latency_ns =
      tier->collective_latency_ns > 0 ? tier->collective_latency_ns : link.latency_ns;
}

opipe_status opi_planning_check_times(const char *planner, const opi_layers *layers,
                                      opipe_error *err) {
  for (uint64_t i = 0; i < (uint64_t)layers->n_layers * layers->n_sizes; ++i) {
    if (layers->at[i].forward_ns > 0 || opi_layer_backward_ns(&layers->at[i]) > 0)
      return OPIPE_OK;
  }
  return opi_fail(err, OPIPE_E_INVALID,
                  "planner '%s': profile '%.120s' has no times, 0 ns for each of its %u layers: a "
                  "device without \"flops\" and \"bandwidth\" gives none",
                  planner, layers->name == NULL ? "" : layers->name, layers->n_layers);
}

opipe_status opi_planning_check(const char *planner, opi_planning *io_planning,
                                opi_machine *out_machine, opipe_error *err) {
  const opi_cluster *c = io_planning->cluster;
  const uint32_t n = io_planning->n_devices == 0 ? c->n_devices : io_planning->n_devices;
  *out_machine = (opi_machine){.cluster = c, .n_devices = n, .memory_bytes = UINT64_MAX};
  if (n > c->n_devices) {
    return opi_fail(err, OPIPE_E_INVALID, "planner '%s': %u devices of a cluster of %u", planner, n,
                    c->n_devices);
  }
  if (io_planning->batch == 0 || io_planning->batch > BATCH_MOST) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "planner '%s': a mini-batch of %" PRIu64 " samples; it must have 1 to %d",
                    planner, io_planning->batch, BATCH_MOST);
  }
  OPI_TRY(opi_planning_check_times(planner, io_planning->layers, err));
  io_planning->n_devices = n;
  if (io_planning->samples == 0)
    io_planning->samples = io_planning->layers->samples[0];
  if (io_planning->samples > io_planning->batch) {
    return opi_fail(err, OPIPE_E_INVALID,
                    "planner '%s': micro-batches of %u samples of a mini-batch of %" PRIu64,
                    planner, io_planning->samples, io_planning->batch);
  }
  if (!(io_planning->state_bytes >= 0)) {
    return opi_fail(err, OPIPE_E_INVALID, "planner '%s': %g bytes of state per byte of parameters",
                    planner, io_planning->state_bytes);
  }
  if (io_planning->state_bytes == 0)
    io_planning->state_bytes = 4;
  for (uint32_t i = 0; i < n; ++i) {
    const uint64_t bytes = c->descriptions[i].memory_bytes;
    if (bytes != 0 && bytes < out_machine->memory_bytes)
      out_machine->memory_bytes = bytes;
  }
  if (!io_planning->judged)
    OPI_TRY(check_kinds(planner, c, n, err));
  OPI_TRY(check_nodes(planner, c, n, out_machine, err));
  if (out_machine->per_node > 1)
    read_link(c, 0, 1, &out_machine->inside);
  if (out_machine->n_nodes > 1)
    read_link(c, 0, n - 1, &out_machine->across);
  return OPIPE_OK;
}

/* ---- strategies ---- */

opipe_status opi_strategy_new(const char *planner, uint32_t n_stages,
                              const opipe_allocator *allocator, opi_strategy **out_strategy,
                              opipe_error *err) {
  opi_strategy *s = opi_alloc_zero(allocator, 1, sizeof(*s));
  if (s == NULL)
    return opi_fail_nomem(err, sizeof(*s), "a strategy");
  opi_arena_init(&s->arena, allocator, 0);
  s->planner = planner;
  s->n_stages = n_stages;
  s->chunks = s->pipelines = s->width = 1;
  s->stages = OPI_ARENA_ARRAY(&s->arena, opi_strategy_stage, n_stages);
  if (s->stages == NULL) {
    opi_strategy_free(s);
    return opi_fail_nomem(err, n_stages * sizeof(opi_strategy_stage), "a strategy");
  }
  *out_strategy = s;
  return OPIPE_OK;
}

void opi_strategy_free(opi_strategy *strategy) {
  if (strategy == NULL)
    return;
  const opipe_allocator *allocator = strategy->arena.allocator;
  opi_arena_release(&strategy->arena);
  opi_free(allocator, strategy, sizeof(*strategy));
}

opipe_status opi_strategy_place(opi_strategy *strategy, uint32_t stage, uint32_t first, uint32_t n,
                                opipe_error *err) {
  uint32_t *devices = OPI_ARENA_ARRAY(&strategy->arena, uint32_t, n);
  if (devices == NULL)
    return opi_fail_nomem(err, n * sizeof(uint32_t), "a strategy");
  for (uint32_t i = 0; i < n; ++i)
    devices[i] = first + i;
  strategy->stages[stage].devices = devices;
  strategy->stages[stage].n_devices = n;
  return OPIPE_OK;
}

/* Writes ranges, as in "0-5,8-13". */
static void write_devices(const opi_strategy_stage *stage, opi_text *text) {
  for (uint32_t i = 0; i < stage->n_devices; ++i) {
    const uint32_t first = stage->devices[i];
    const char *comma = i == 0 ? "" : ",";
    while (i + 1 < stage->n_devices && stage->devices[i + 1] == stage->devices[i] + 1)
      ++i;
    opi_text_printf(text, "%s%u", comma, first);
    if (stage->devices[i] != first)
      opi_text_printf(text, "-%u", stage->devices[i]);
  }
}

void opi_strategy_describe(const opi_strategy *s, const opi_layers *layers, bool forward,
                           opi_text *text) {
  opi_text_printf(text, "planner   %s, schedule %s\n", s->planner, s->schedule);
  opi_text_printf(text, "copies    %u of %u stage%s", s->pipelines, s->n_stages,
                  s->n_stages == 1 ? "" : "s");
  if (s->chunks > 1)
    opi_text_printf(text, " in %u chunks", s->chunks);
  opi_text_printf(text, ", tensor width %u%s%s\n", s->width,
                  s->sharded ? ", sharded optimizer" : "",
                  s->scattered ? ", scattered messages" : "");
  opi_text_printf(text, "batch     %u micro-batch%s of %u sample%s in each copy%s\n",
                  s->microbatches, s->microbatches == 1 ? "" : "es", s->samples,
                  s->samples == 1 ? "" : "s", s->recompute ? ", recomputed" : "");
  for (uint32_t g = 0; g < s->n_groups; ++g) {
    opi_text_printf(text, "slices    %u rows:", s->groups[g].rows);
    for (uint32_t k = 0; k < s->groups[g].n_slices; ++k)
      opi_text_printf(text, " %u", s->groups[g].lengths[k]);
    opi_text_puts(text, "\n");
  }
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    const opi_strategy_stage *stage = &s->stages[i];
    opi_text_printf(text, "stage %-3u layers %u-%u", i, stage->first, stage->end - 1);
    if (layers->names[stage->first] != NULL && layers->names[stage->end - 1] != NULL) {
      opi_text_printf(text, " (%.40s .. %.40s)", layers->names[stage->first],
                      layers->names[stage->end - 1]);
    }
    opi_text_puts(text, " on ");
    write_devices(stage, text);
    opi_text_printf(text, ": %.3f ms forward, %.3f ms backward, %.1f MiB\n",
                    stage->forward_ns * 1e-6, stage->backward_ns * 1e-6,
                    (double)stage->memory_bytes / (1 << 20));
  }
  opi_text_printf(text, "predicted %.3f ms for a %s (objective %.3f %s), %.1f MiB\n",
                  s->step_ns * 1e-6, forward ? "request" : "mini-batch",
                  s->counts_bytes ? s->objective / (1 << 20) : s->objective * 1e-6,
                  s->counts_bytes ? "MiB" : "ms", (double)s->memory_bytes / (1 << 20));
}

static void write_list(const uint32_t *list, uint32_t n, opi_text *text) {
  opi_text_puts(text, "[");
  for (uint32_t i = 0; i < n; ++i)
    opi_text_printf(text, "%s%u", i == 0 ? "" : ", ", list[i]);
  opi_text_puts(text, "]");
}

static void write_stage(const opi_strategy_stage *stage, opi_text *text) {
  opi_text_printf(text, "    {\"layers\": [%u, %u], \"devices\": ", stage->first, stage->end);
  write_list(stage->devices, stage->n_devices, text);
  opi_text_puts(text, ", \"forward_ns\": ");
  opi_json_double(text, stage->forward_ns);
  opi_text_puts(text, ", \"backward_ns\": ");
  opi_json_double(text, stage->backward_ns);
  opi_text_printf(text, ", \"memory_bytes\": %" PRIu64, stage->memory_bytes);
  if (stage->last != NULL) {
    opi_text_puts(text, ", \"last\": ");
    opi_text_json(text, stage->last);
  }
  opi_text_puts(text, "}");
}

void opi_strategy_write_open(const opi_strategy *s, opi_text *text) {
  opi_text_puts(text, "{\n  \"format\": \"onnx-pipe strategy 1\",\n  \"planner\": ");
  opi_text_json(text, s->planner);
  opi_text_puts(text, ",\n  \"schedule\": ");
  opi_text_json(text, s->schedule);
  opi_text_printf(text,
                  ",\n  \"pipelines\": %u, \"width\": %u, \"chunks\": %u, \"samples\": %u, "
                  "\"microbatches\": %u, \"recompute\": %s, \"sharded\": %s, \"scattered\": "
                  "%s,\n  \"stages\": [\n",
                  s->pipelines, s->width, s->chunks, s->samples, s->microbatches,
                  s->recompute ? "true" : "false", s->sharded ? "true" : "false",
                  s->scattered ? "true" : "false");
  for (uint32_t i = 0; i < s->n_stages; ++i) {
    write_stage(&s->stages[i], text);
    opi_text_puts(text, i + 1 == s->n_stages ? "\n" : ",\n");
  }
  opi_text_puts(text, "  ],\n  \"slices\": [");
  for (uint32_t g = 0; g < s->n_groups; ++g) {
    opi_text_printf(text, "%s{\"rows\": %u, \"lengths\": ", g == 0 ? "" : ", ", s->groups[g].rows);
    write_list(s->groups[g].lengths, s->groups[g].n_slices, text);
    opi_text_puts(text, "}");
  }
  opi_text_puts(text, "],\n  \"rank_devices\": ");
  write_list(s->rank_devices, s->rank_devices == NULL ? 0 : s->pipelines * s->n_ranks * s->width,
             text);
  opi_text_printf(text, ",\n  \"objective_%s\": ", s->counts_bytes ? "bytes" : "ns");
  opi_json_double(text, s->objective);
  opi_text_puts(text, ", \"step_ns\": ");
  opi_json_double(text, s->step_ns);
  opi_text_printf(text, ", \"memory_bytes\": %" PRIu64, s->memory_bytes);
}

void opi_strategy_write(const opi_strategy *s, opi_text *text) {
  opi_strategy_write_open(s, text);
  opi_text_puts(text, "\n}\n");
}

/* ---- blocks ---- */

/* Measured times are never exactly equal, so they are compared only if the work is unknown. */
static bool alike(const opi_layers *layers, uint32_t a, uint32_t b) {
  const opi_layer *x = &layers->at[a], *y = &layers->at[b];
  const bool works = x->flops > 0 && y->flops > 0;
  return near((double)x->param_bytes, (double)y->param_bytes) &&
         near((double)x->cut_bytes, (double)y->cut_bytes) &&
         near((double)x->stash_bytes, (double)y->stash_bytes) &&
         (works ? near(x->flops, y->flops)
                : near(x->forward_ns, y->forward_ns) &&
                      near(opi_layer_backward_ns(x), opi_layer_backward_ns(y)));
}

void opi_layers_blocks(const opi_layers *layers, uint32_t *out_first, uint32_t *out_end) {
  *out_first = 0;
  *out_end = 0;
  for (uint32_t first = 0, end = 0; first < layers->n_layers; first = end) {
    for (end = first + 1; end < layers->n_layers && alike(layers, first, end);)
      ++end;
    if (end - first > *out_end - *out_first) {
      *out_first = first;
      *out_end = end;
    }
  }
  if (*out_end - *out_first < 2) {
    *out_first = 0;
    *out_end = layers->n_layers;
  }
}

bool opi_even_stages(const opi_layers *layers, uint32_t n, uint32_t *out_ends) {
  uint32_t first = 0, end = 0;
  opi_layers_blocks(layers, &first, &end);
  if (n == 0 || (end - first) % n != 0)
    return false;
  for (uint32_t s = 0; s <= n; ++s)
    out_ends[s] = first + (end - first) / n * s;
  out_ends[0] = 0;
  out_ends[n] = layers->n_layers;
  return true;
}

/* ---- names ---- */

static const struct {
  const char *name;
  opi_planner_fn plan;
  opi_ranked_fn slicings;
} planners[] = {{"dapple", opi_plan_dapple, NULL},
                {"pipedream", opi_plan_pipedream, NULL},
                {"2bw", opi_plan_2bw, NULL},
                {"chimera", opi_plan_chimera, NULL},
                {"megatron", opi_plan_megatron, NULL},
                {"terapipe", opi_plan_terapipe, opi_plan_terapipe_ranked}};

opi_planner_fn opi_planner_find(const char *name) {
  for (size_t i = 0; i < OPI_COUNT(planners); ++i) {
    if (strcmp(planners[i].name, name) == 0)
      return planners[i].plan;
  }
  return NULL;
}

opi_ranked_fn opi_planner_slicings(const char *name) {
  for (size_t i = 0; i < OPI_COUNT(planners); ++i) {
    if (strcmp(planners[i].name, name) == 0)
      return planners[i].slicings;
  }
  return NULL;
}

const char *opi_planner_names(void) {
  return "dapple, pipedream, 2bw, chimera, megatron, terapipe";
}
