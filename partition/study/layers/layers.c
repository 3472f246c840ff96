/* SPDX-License-Identifier: Apache-2.0 */
/* A profile of layers as a value: construction, checks, queries. */
#include "partition/study/layers/layers.h"

#include <math.h>

enum { BYTES_BITS = 48 };
static const double ns_most = 1e18;
static const double flops_most = 1e24;

opipe_status opi_layers_new(const char *name, uint32_t n_layers, uint32_t n_sizes,
                            const opipe_allocator *allocator, opi_layers **out_layers,
                            opipe_error *err) {
  if (n_layers == 0 || n_layers > OPI_LAYERS_MOST || n_sizes == 0 ||
      n_sizes > OPI_LAYER_SIZES_MOST) {
    return opi_fail(
        err, OPIPE_E_LIMIT,
        "'%.80s': %u layers for %u numbers of samples; there must be 1 to %d layers and 1 to "
        "%d numbers",
        name, n_layers, n_sizes, OPI_LAYERS_MOST, OPI_LAYER_SIZES_MOST);
  }
  opi_layers *layers = opi_alloc_zero(allocator, 1, sizeof(*layers));
  if (layers == NULL)
    return opi_fail_nomem(err, sizeof(*layers), "a profile of layers");
  opi_arena_init(&layers->arena, allocator, 0);
  layers->name = opi_arena_strdup(&layers->arena, name);
  layers->names = OPI_ARENA_ARRAY(&layers->arena, const char *, n_layers);
  layers->samples = OPI_ARENA_ARRAY(&layers->arena, uint32_t, n_sizes);
  layers->at = OPI_ARENA_ARRAY(&layers->arena, opi_layer, (size_t)n_layers * n_sizes);
  layers->n_layers = n_layers;
  layers->n_sizes = n_sizes;
  if (layers->name == NULL || layers->names == NULL || layers->samples == NULL ||
      layers->at == NULL) {
    opi_layers_free(layers);
    return opi_fail_nomem(err, (uint64_t)n_layers * n_sizes * sizeof(opi_layer),
                          "a profile of layers");
  }
  *out_layers = layers;
  return OPIPE_OK;
}

opipe_status opi_layers_add_slices(opi_layers *layers, uint32_t n, opipe_error *err) {
  const size_t all = (size_t)n * layers->n_layers;
  if (n == 0 || n > OPI_TOKEN_COUNTS_MOST) {
    return opi_fail(err, OPIPE_E_LIMIT,
                    "'%.80s': slices of %u numbers of tokens; there must be 1 to %d", layers->name,
                    n, OPI_TOKEN_COUNTS_MOST);
  }
  opi_token_costs *slices = &layers->slices;
  slices->tokens = OPI_ARENA_ARRAY(&layers->arena, uint32_t, n);
  slices->alone = OPI_ARENA_ARRAY(&layers->arena, opi_token_cost, all);
  slices->context_ns = OPI_ARENA_ARRAY(&layers->arena, double, layers->n_layers);
  if (slices->tokens == NULL || slices->alone == NULL || slices->context_ns == NULL)
    return opi_fail_nomem(err, all * sizeof(opi_token_cost), "a profile of layers");
  slices->n = n;
  return OPIPE_OK;
}

void opi_layers_free(opi_layers *layers) {
  if (layers == NULL)
    return;
  const opipe_allocator *allocator = layers->arena.allocator;
  opi_arena_release(&layers->arena);
  opi_free(allocator, layers, sizeof(*layers));
}

static const char *wrong_field(const opi_layer *l, double *out_value) {
  const struct {
    const char *name;
    double value, most;
  } fields[] = {{"flops", l->flops, flops_most},
                {"forward time in ns", l->forward_ns, ns_most},
                {"input backward time in ns", l->input_ns, ns_most},
                {"weight backward time in ns", l->weight_ns, ns_most},
                {"output bytes", (double)l->output_bytes, (double)(UINT64_C(1) << BYTES_BITS)},
                {"cut bytes", (double)l->cut_bytes, (double)(UINT64_C(1) << BYTES_BITS)},
                {"stash bytes", (double)l->stash_bytes, (double)(UINT64_C(1) << BYTES_BITS)},
                {"parameter bytes", (double)l->param_bytes, (double)(UINT64_C(1) << BYTES_BITS)},
                {"width share", l->width_share, 1},
                {"width bytes", (double)l->width_bytes, (double)(UINT64_C(1) << BYTES_BITS)}};
  for (size_t i = 0; i < OPI_COUNT(fields); ++i) {
    if (!(fields[i].value >= 0 && fields[i].value <= fields[i].most)) {
      *out_value = fields[i].value;
      return fields[i].name;
    }
  }
  return NULL;
}

static opipe_status check_slices(const opi_layers *layers, opipe_error *err) {
  const opi_token_costs *slices = &layers->slices;
  for (uint32_t k = 0; k < slices->n; ++k) {
    if (slices->tokens[k] == 0 || (k > 0 && slices->tokens[k] <= slices->tokens[k - 1])) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "'%.80s': slices of %u tokens after %u; numbers of tokens must rise from 1",
                      layers->name, slices->tokens[k], k == 0 ? 0 : slices->tokens[k - 1]);
    }
    for (uint32_t i = 0; i < layers->n_layers; ++i) {
      const opi_token_cost *c = &slices->alone[(size_t)k * layers->n_layers + i];
      const double context = slices->context_ns[i];
      if (!(c->ns >= 0 && c->ns <= ns_most && c->width_share >= 0 && c->width_share <= 1 &&
            context >= 0 && context <= ns_most)) {
        return opi_fail(err, OPIPE_E_INVALID,
                        "'%.80s': layer %u ('%.60s'), slices of %u tokens: %g ns, %g ns per token "
                        "and earlier one, width share %g",
                        layers->name, i, layers->names[i] == NULL ? "" : layers->names[i],
                        slices->tokens[k], c->ns, context, c->width_share);
      }
    }
  }
  return OPIPE_OK;
}

opipe_status opi_layers_check(const opi_layers *layers, opipe_error *err) {
  for (uint32_t k = 0; k < layers->n_sizes; ++k) {
    if (layers->samples[k] == 0 || (k > 0 && layers->samples[k] <= layers->samples[k - 1])) {
      return opi_fail(err, OPIPE_E_INVALID,
                      "'%.80s': %u samples after %u; numbers of samples must rise from 1",
                      layers->name, layers->samples[k], k == 0 ? 0 : layers->samples[k - 1]);
    }
    for (uint32_t i = 0; i < layers->n_layers; ++i) {
      double value = 0;
      const char *field = wrong_field(&layers->at[(size_t)k * layers->n_layers + i], &value);
      if (field != NULL) {
        return opi_fail(err, OPIPE_E_INVALID, "'%.80s': layer %u ('%.60s') at %u samples: %s is %g",
                        layers->name, i, layers->names[i] == NULL ? "" : layers->names[i],
                        layers->samples[k], field, value);
      }
    }
  }
  return check_slices(layers, err);
}

static uint64_t mix_bytes(uint64_t a, uint64_t b, double share) {
  return (uint64_t)llround((double)a + ((double)b - (double)a) * share);
}

static double mix(double a, double b, double share) {
  return a + (b - a) * share;
}

/* Interpolates from a to b. */
static opi_layer between(const opi_layer *a, const opi_layer *b, double share) {
  opi_layer out = *a;
  out.flops = mix(a->flops, b->flops, share);
  out.forward_ns = mix(a->forward_ns, b->forward_ns, share);
  out.input_ns = mix(a->input_ns, b->input_ns, share);
  out.weight_ns = mix(a->weight_ns, b->weight_ns, share);
  out.output_bytes = mix_bytes(a->output_bytes, b->output_bytes, share);
  out.cut_bytes = mix_bytes(a->cut_bytes, b->cut_bytes, share);
  out.stash_bytes = mix_bytes(a->stash_bytes, b->stash_bytes, share);
  out.width_bytes = mix_bytes(a->width_bytes, b->width_bytes, share);
  return out;
}

opi_layer opi_layers_at(const opi_layers *layers, uint32_t layer, double samples) {
  static const opi_layer nothing;
  const uint32_t last = layers->n_sizes - 1;
  uint32_t k = 0;
  while (k < last && layers->samples[k] < samples)
    ++k;
  const opi_layer *here = &layers->at[(size_t)k * layers->n_layers + layer];
  const double at = layers->samples[k];
  if (samples == at)
    return *here;
  if (samples > at || k == 0) {
    opi_layer scaled = between(&nothing, here, samples / at);
    scaled.param_bytes = here->param_bytes;
    scaled.width_share = here->width_share;
    return scaled;
  }
  const double before = layers->samples[k - 1];
  return between(&layers->at[(size_t)(k - 1) * layers->n_layers + layer], here,
                 (samples - before) / (at - before));
}

opi_layer opi_layers_sum(const opi_layers *layers, uint32_t first, uint32_t end, double samples) {
  opi_layer sum = {0};
  double shared_ns = 0, all_ns = 0;
  for (uint32_t i = first; i < end; ++i) {
    const opi_layer l = opi_layers_at(layers, i, samples);
    const double ns = l.forward_ns + opi_layer_backward_ns(&l);
    sum.flops += l.flops;
    sum.forward_ns += l.forward_ns;
    sum.input_ns += l.input_ns;
    sum.weight_ns += l.weight_ns;
    sum.stash_bytes += l.stash_bytes;
    sum.param_bytes += l.param_bytes;
    sum.width_bytes += l.width_bytes;
    sum.output_bytes = l.output_bytes;
    sum.cut_bytes = l.cut_bytes;
    shared_ns += ns * l.width_share;
    all_ns += ns;
  }
  sum.width_share = all_ns > 0 ? shared_ns / all_ns : 0;
  return sum;
}

/* ---- slices ---- */

void opi_layers_slices_sum(const opi_layers *layers, uint32_t first, uint32_t end, uint32_t width,
                           double *out_ns, double *out_context_ns) {
  const opi_token_costs *slices = &layers->slices;
  for (uint32_t k = 0; k < slices->n; ++k) {
    out_ns[k] = 0;
    for (uint32_t i = first; i < end; ++i) {
      const opi_token_cost *c = &slices->alone[(size_t)k * layers->n_layers + i];
      out_ns[k] += c->ns * (1 - c->width_share + c->width_share / width);
    }
  }
  *out_context_ns = 0;
  for (uint32_t i = first; i < end && slices->n > 0; ++i)
    *out_context_ns += slices->context_ns[i] / width;
}

double opi_layers_alone_ns(const opi_layers *layers, const double *ns, double tokens) {
  const opi_token_costs *slices = &layers->slices;
  uint32_t k = 1;
  if (slices->n == 1 || tokens <= slices->tokens[0])
    return ns[0];
  while (k + 1 < slices->n && slices->tokens[k] < tokens)
    ++k;
  const double below = slices->tokens[k - 1], at = slices->tokens[k];
  return mix(ns[k - 1], ns[k], (tokens - below) / (at - below));
}
