/* SPDX-License-Identifier: Apache-2.0 */
/* Costs of the layers of a described transformer. */
#include <stdio.h>

#include "partition/study/arch/arch.h"

/* Operations per element, as in loader/ops. */
enum { NORM_WORK = 8, CURVE_WORK = 8, ROTARY_WORK = 3, SOFTMAX_WORK = 5, IDS_BYTES = 8 };
enum { OP_PLAIN = 0, OP_PRODUCT, OP_ATTENTION };

/* Counts one layer. T is the number of tokens of a micro-batch. */
typedef struct counter {
  const opi_arch *arch;
  const opi_arch_place *place;
  double samples, tokens; /* T */
  double width;           /* bytes per element */
  double shared_ns, all_ns, shared_flops;
  double attention_ns; /* without launches */
  double bandwidth, launch_ns;
  double params;
  opi_layer *out;
} counter;

static double ns_of(const counter *c, double flops, uint64_t least, double bytes) {
  if (c->place->cluster == NULL)
    return 0;
  const double rate = opi_cluster_flops(c->place->cluster, c->place->device, c->arch->dtype, least);
  const double compute = rate > 0 ? flops / rate * 1e9 : 0;
  const double memory = c->bandwidth > 0 ? bytes / c->bandwidth * 1e9 : 0;
  return (compute > memory ? compute : memory) + c->launch_ns;
}

/* Adds one node: its forward, its backward for inputs (as much), and for weights (as much, if it is
 * a product). A tensor group divides the work of some nodes, never their launches. */
static void add_op(counter *c, double flops, uint64_t least, double bytes, uint32_t kind) {
  const double ns = ns_of(c, flops, least, bytes);
  const double input = kind == OP_ATTENTION ? 2 * ns : ns, weight = kind == OP_PRODUCT ? ns : 0;
  const double all = ns + input + weight;
  const double divided = ns > 0 ? all * (1 - c->launch_ns / ns) : 0;
  c->out->flops += flops;
  c->out->forward_ns += ns;
  c->out->input_ns += input;
  c->out->weight_ns += weight;
  c->all_ns += all;
  c->attention_ns += kind == OP_ATTENTION ? divided : 0;
  if (kind != OP_PLAIN) {
    c->shared_ns += divided;
    c->shared_flops += flops;
  }
}

static uint64_t least_of(double a, double b, double d) {
  const double m = a < b ? a : b;
  return (uint64_t)(m < d ? m : d);
}

/* [T, k] x [k, n], with the bias as a node of its own. */
static void add_product(counter *c, double k, double n, bool bias) {
  const double rows = c->tokens;
  add_op(c, 2 * rows * k * n, least_of(rows, k, n), c->width * (rows * (k + n) + k * n),
         OP_PRODUCT);
  if (bias)
    add_op(c, rows * n, UINT64_MAX, c->width * 2 * rows * n, OP_PLAIN);
  c->params += k * n + (bias ? n : 0);
}

/* Elementwise on [T, n], `work` operations per element. */
static void add_each(counter *c, double n, double work) {
  add_op(c, work * c->tokens * n, UINT64_MAX, c->width * 2 * c->tokens * n, OP_PLAIN);
}

static void add_norm(counter *c) {
  add_each(c, c->arch->hidden, NORM_WORK);
  c->params += (c->arch->kind == OPI_ARCH_LLAMA ? 1.0 : 2.0) * c->arch->hidden;
}

static void add_attention(counter *c) {
  const opi_arch *a = c->arch;
  const double s = a->seq, kv = (double)a->hidden / a->heads * a->kv_heads;
  add_op(c, 4 * s * c->tokens * a->hidden + SOFTMAX_WORK * c->samples * a->heads * s * s,
         a->hidden / a->heads, c->width * c->tokens * (2.0 * a->hidden + 2 * kv), OP_ATTENTION);
}

/* ---- layers ---- */

static void count_block(counter *c) {
  const opi_arch *a = c->arch;
  const bool llama = a->kind == OPI_ARCH_LLAMA;
  const double h = a->hidden, f = a->ffn, kv = h / a->heads * a->kv_heads;
  if (a->kind == OPI_ARCH_GPT && a->kv_heads == a->heads) {
    add_product(c, h, 3 * h, true);
  } else {
    add_product(c, h, h, !llama);
    add_product(c, h, kv, !llama);
    add_product(c, h, kv, !llama);
  }
  if (llama) {
    add_each(c, h, ROTARY_WORK);
    add_each(c, kv, ROTARY_WORK);
  }
  add_attention(c);
  add_product(c, h, h, !llama);
  add_product(c, h, f, !llama);
  add_each(c, f, CURVE_WORK);
  if (llama) {
    add_product(c, h, f, false);
    add_each(c, f, 1);
  }
  add_product(c, f, h, !llama);
  add_norm(c);
  add_norm(c);
  add_each(c, h, 1); /* the two residual sums */
  add_each(c, h, 1);
  /* stash: inputs and results of both norms, q, and the attention's result (6 h); k and v; between
   * the two products */
  c->out->stash_bytes = (uint64_t)(c->width * c->tokens * (6 * h + 2 * kv + (llama ? 4 : 2) * f));
  c->out->width_bytes = (uint64_t)(2 * c->width * c->tokens * h);
}

static void count_embedding(counter *c) {
  const opi_arch *a = c->arch;
  const double h = a->hidden;
  c->params = (double)a->vocab * h;
  if (a->kind != OPI_ARCH_LLAMA) {
    c->params += (double)a->positions * h;
    add_each(c, h, 1);
  }
  if (a->kind == OPI_ARCH_BERT) {
    c->params += 2 * h;
    add_each(c, h, 1);
    add_norm(c);
  }
  c->out->stash_bytes =
      (uint64_t)(c->tokens * IDS_BYTES + (a->kind == OPI_ARCH_BERT ? c->width * c->tokens * h : 0));
}

static void count_head(counter *c) {
  const opi_arch *a = c->arch;
  const double h = a->hidden;
  if (a->kind != OPI_ARCH_BERT)
    add_norm(c);
  if (a->heads_of_bert) { /* a transform of every token; pooler and two classes of the first token
                           */
    add_product(c, h, h, true);
    add_each(c, h, CURVE_WORK);
    add_norm(c);
    c->params += h * h + h + 2 * h + 2;
  }
  add_product(c, h, a->vocab, a->kind == OPI_ARCH_BERT);
  c->out->stash_bytes = (uint64_t)(c->width * c->tokens * (2 * h + a->vocab));
}

static void count(counter *c, uint32_t layer) {
  const opi_arch *a = c->arch;
  const bool first = layer == 0, last = layer == a->layers + 1;
  if (first)
    count_embedding(c);
  else if (last)
    count_head(c);
  else
    count_block(c);
  c->out->param_bytes = (uint64_t)(c->width * c->params);
  c->out->output_bytes = (uint64_t)(c->width * c->tokens * (last ? a->vocab : a->hidden));
  c->out->cut_bytes = last ? 0 : c->out->output_bytes;
  c->out->width_share = c->all_ns > 0       ? c->shared_ns / c->all_ns
                        : c->out->flops > 0 ? c->shared_flops / c->out->flops
                                            : 0;
  if (first)
    c->out->width_share = 1; /* the table is divided by rows */
}

/* A counter before anything is counted. */
static counter begin(const opi_arch *arch, const opi_arch_place *place, double tokens,
                     opi_layer *out) {
  counter c = {.arch = arch, .place = place, .out = out, .samples = tokens / arch->seq};
  c.tokens = tokens;
  c.width = opi_dtype_bits(arch->dtype) / 8.0;
  if (place->cluster != NULL) {
    c.bandwidth = place->cluster->descriptions[place->device].bandwidth;
    c.launch_ns = place->cluster->descriptions[place->device].launch_ns;
  }
  return c;
}

static void fill(const opi_arch *arch, const opi_arch_place *place, uint32_t k, opi_layers *out) {
  for (uint32_t i = 0; i < out->n_layers; ++i) {
    counter c = begin(arch, place, (double)out->samples[k] * arch->seq,
                      &out->at[(size_t)k * out->n_layers + i]);
    count(&c, i);
  }
}

/* ---- slices ---- */

/* Lists numbers of tokens from a few to those of 16 samples: a quarter apart up to one sample, then
 * wider. */
static uint32_t list_tokens(uint32_t seq, uint32_t out[OPI_TOKEN_COUNTS_MOST]) {
  enum { LEAST = 8, SAMPLES_MOST = 16, STEPS_MOST = OPI_TOKEN_COUNTS_MOST - 8 };
  uint64_t at = LEAST;
  uint32_t n = 0;
  for (; at < seq && n < STEPS_MOST; at += at / 4 / LEAST * LEAST + LEAST)
    out[n++] = (uint32_t)at;
  for (uint64_t k = 1; k <= SAMPLES_MOST && k * seq <= INT32_MAX; k *= 2)
    out[n++] = (uint32_t)(k * seq);
  return n;
}

/* A layer's time without attention, and how much of it a tensor group divides. */
static opi_token_cost alone_of(const counter *c, uint32_t layer) {
  const double ns = c->all_ns - c->attention_ns;
  const double shared = layer == 0 ? ns : c->shared_ns - c->attention_ns;
  return (opi_token_cost){.ns = ns > 0 ? ns : 0,
                          .width_share = ns > 0 && shared > 0 ? shared / ns : 0};
}

/* Attention cost per unit of context; that of a whole sample is seq * seq / 2. */
static double context_of(const opi_arch *arch, const opi_arch_place *place, uint32_t layer) {
  opi_layer unused = {0};
  counter c = begin(arch, place, arch->seq, &unused);
  count(&c, layer);
  return 2 * c.attention_ns / ((double)arch->seq * arch->seq);
}

/* Blocks are alike, so the second layer stands for all of them. */
static opipe_status fill_slices(const opi_arch *arch, const opi_arch_place *place, opi_layers *out,
                                opipe_error *err) {
  uint32_t tokens[OPI_TOKEN_COUNTS_MOST];
  const uint32_t n = list_tokens(arch->seq, tokens), last = out->n_layers - 1;
  if (arch->kind == OPI_ARCH_BERT || place->cluster == NULL)
    return OPIPE_OK;
  OPI_TRY(opi_layers_add_slices(out, n, err));
  for (uint32_t k = 0; k < n; ++k) {
    opi_token_cost *at = &out->slices.alone[(size_t)k * out->n_layers];
    out->slices.tokens[k] = tokens[k];
    for (uint32_t i = 0; i < out->n_layers; ++i) {
      opi_layer unused = {0};
      counter c = begin(arch, place, tokens[k], &unused);
      if (i < 2 || i == last)
        count(&c, i);
      at[i] = i < 2 || i == last ? alone_of(&c, i) : at[1];
    }
  }
  for (uint32_t i = 0; i < out->n_layers; ++i) {
    const bool known = i < 2 || i == last;
    out->slices.context_ns[i] = known ? context_of(arch, place, i) : out->slices.context_ns[1];
  }
  return OPIPE_OK;
}

static opipe_status name_layers(opi_layers *out, opipe_error *err) {
  for (uint32_t i = 0; i < out->n_layers; ++i) {
    out->names[i] = i == 0                   ? "embedding"
                    : i + 1 == out->n_layers ? "head"
                                             : opi_arena_printf(&out->arena, "block %u", i - 1);
    if (out->names[i] == NULL)
      return opi_fail_nomem(err, sizeof "block", "a profile of layers");
  }
  return OPIPE_OK;
}

opipe_status opi_arch_layers(const opi_arch *arch, const char *name, const opi_arch_place *place,
                             const uint32_t *samples, uint32_t n_sizes,
                             const opipe_allocator *allocator, opi_layers **out_layers,
                             opipe_error *err) {
  opi_layers *out = NULL;
  OPI_TRY(opi_layers_new(name, arch->layers + 2, n_sizes, allocator, &out, err));
  out->tokens = arch->seq;
  out->weight_bytes = opi_dtype_bits(arch->dtype) / 8;
  out->halves = true;
  for (uint32_t k = 0; k < n_sizes; ++k) {
    out->samples[k] = samples[k];
    fill(arch, place, k, out);
  }
  opipe_status status = name_layers(out, err);
  if (status == OPIPE_OK)
    status = fill_slices(arch, place, out, err);
  if (status == OPIPE_OK)
    status = opi_layers_check(out, err);
  if (status < 0) {
    opi_layers_free(out);
    return status;
  }
  *out_layers = out;
  return OPIPE_OK;
}
