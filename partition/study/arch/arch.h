/* SPDX-License-Identifier: Apache-2.0 */
/* Models that are not at hand: the costs of each layer of a transformer, from its shape alone.
 *
 * The layers are the embedding, the blocks, and the head with the norm before it. Work, parameters,
 * stashes and crossing bytes are counted as in the same model's graph once it is bound and its
 * patterns are fused: one node per product, added bias, norm, attention and activation, each costed
 * as in loader/ops.
 */
#ifndef OPI_ARCH_H
#define OPI_ARCH_H

#include "partition/study/cluster/cluster.h"
#include "partition/study/layers/layers.h"

enum {
  OPI_ARCH_GPT = 0, /* learned positions, pre-LayerNorm, one product for q, k and v, GELU */
  OPI_ARCH_LLAMA,   /* rotary positions, RMSNorm before, gated SiLU, no biases, grouped queries */
  OPI_ARCH_BERT,    /* learned positions, token types, post-LayerNorm, GELU */
  OPI_ARCHS
};

typedef struct opi_arch {
  uint32_t kind;
  uint32_t layers, hidden, heads, vocab, seq;
  uint32_t ffn;       /* width between the two products of a block */
  uint32_t kv_heads;  /* heads of keys and values */
  uint32_t positions; /* rows of the position table */
  uint32_t dtype;     /* of products, activations and weights: OPIPE_FLOAT, FLOAT16, BFLOAT16 */
  bool tied;          /* the head shares the embedding's table */
  bool heads_of_bert; /* pooler and both pre-training heads instead of the single product */
} opi_arch;

/* Parses "gpt:layers=96,hidden=12288,heads=96,vocab=51200,seq=2048"; also llama and bert. Optional
 * keys and defaults: ffn (4 hidden; llama: 8/3 hidden, rounded up to a multiple of 256), kv-heads
 * (heads), positions (seq), type=fp32|fp16|bf16 (fp32), tied=0|1 (1; llama: 0), pretraining=0|1
 * (bert, 0). Errors: INVALID names the key, its value and the allowed values. */
opipe_status opi_arch_parse(const char *spec, opi_arch *out_arch, opipe_error *err);

/* Parameters of the whole model; a tied table counts once. */
uint64_t opi_arch_params(const opi_arch *arch);

/* The device on which layers run. Products take the rate of their type and smallest extent;
 * everything else takes the memory's bandwidth, if known. Rates of 0 give times of 0. */
typedef struct opi_arch_place {
  const opi_cluster *cluster; /* NULL: no times */
  uint32_t device;
} opi_arch_place;

/* samples [n_sizes], rising. The profile takes the spec's name. Errors: LIMIT, more bytes than a
 * layer may have; NOMEM. */
opipe_status opi_arch_layers(const opi_arch *arch, const char *name, const opi_arch_place *place,
                             const uint32_t *samples, uint32_t n_sizes,
                             const opipe_allocator *allocator, opi_layers **out_layers,
                             opipe_error *err);

#endif /* OPI_ARCH_H */
