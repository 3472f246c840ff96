/* SPDX-License-Identifier: Apache-2.0 */
/* A model by its layers: the basis of planners that see no graph, only the costs of layers.
 *
 * Layers are numbered in an order in which every edge goes forward; a stage is a run of layers. All
 * times and bytes are of one micro-batch on one device, alone. They are known for one or more
 * numbers of samples per micro-batch. Profiles of PipeDream and DAPPLE can be read (layers_text.c),
 * the project's own can be read and written (layers_json.c), and those of described models are
 * computed from their shape (partition/study/arch).
 */
#ifndef OPI_LAYERS_H
#define OPI_LAYERS_H

#include "loader/base/base.h"

enum { OPI_LAYERS_MOST = 65536, OPI_LAYER_SIZES_MOST = 64, OPI_TOKEN_COUNTS_MOST = 64 };

typedef struct opi_layer {
  double flops; /* of its forward; 0: unknown */
  double forward_ns, input_ns, weight_ns;
  uint64_t output_bytes; /* of its outputs for other layers */
  uint64_t cut_bytes;   /* of everything that crosses a cut behind it: its outputs, and tensors that
                           skip it */
  uint64_t stash_bytes; /* kept from forward to backward; input layers keep none */
  uint64_t param_bytes;
  /* Tensor parallelism over t devices divides this share of times, stash and parameters by t; the
   * devices sum this many bytes in the forward, and as many in the backward. */
  double width_share; /* 0 to 1 */
  uint64_t width_bytes;
} opi_layer;

/* Costs of token slices, for models in which no token depends on later ones. Forward and backward
 * of a layer, for a slice of l tokens in each of r samples after b earlier tokens, take alone(r l)
 * + r context l (b + l / 2) so the slices of a sample together take as long as the whole sample,
 * except for the part of alone() that does not scale with tokens. */
typedef struct opi_token_cost {
  double ns;          /* without attention */
  double width_share; /* share that tensor parallelism divides */
} opi_token_cost;
typedef struct opi_token_costs {
  uint32_t n;            /* numbers of tokens that are known; 0: none */
  uint32_t *tokens;      /* [n] rising */
  opi_token_cost *alone; /* [n * n_layers] by number, then layer */
  double *context_ns; /* [n_layers] for a token and an earlier one; tensor parallelism divides it */
} opi_token_costs;

typedef struct opi_layers {
  opi_arena arena;
  const char *name;
  const char **names; /* [n_layers] */
  uint32_t *samples;  /* [n_sizes] samples per micro-batch, rising */
  opi_layer *at;      /* [n_sizes * n_layers] by size, then layer */
  uint32_t n_layers, n_sizes;
  uint32_t tokens;       /* per sample; 0: none */
  uint32_t weight_bytes; /* per parameter: 4, 2; 0: unknown */
  bool halves; /* backward times of inputs and weights were measured separately; otherwise each is
                  half */
  const char *whole; /* why the batch must be one micro-batch; NULL: it may be split */
  opi_token_costs slices;
} opi_layers;

/* An empty profile: zeros except for the arena and the counts. Errors: LIMIT with both numbers;
 * NOMEM. */
opipe_status opi_layers_new(const char *name, uint32_t n_layers, uint32_t n_sizes,
                            const opipe_allocator *allocator, opi_layers **out_layers,
                            opipe_error *err);
void opi_layers_free(opi_layers *layers); /* accepts NULL */
/* Makes room for the costs of slices at n numbers of tokens, all zero. Errors: LIMIT with both
 * numbers; NOMEM. */
opipe_status opi_layers_add_slices(opi_layers *layers, uint32_t n, opipe_error *err);
/* Checks that planners can add up all numbers. Errors: INVALID by layer and field. */
opipe_status opi_layers_check(const opi_layers *layers, opipe_error *err);

/* A layer at any number of samples: as given; interpolated between two numbers; beyond the smallest
 * and largest in proportion to samples. Parameters do not depend on samples. */
opi_layer opi_layers_at(const opi_layers *layers, uint32_t layer, double samples);
/* Sums of layers [first, end). cut_bytes and output_bytes are those of the last layer, width_share
 * that of the total time. */
opi_layer opi_layers_sum(const opi_layers *layers, uint32_t first, uint32_t end, double samples);

/* Sums alone() over layers [first, end) on one of `width` tensor devices, for every number of
 * tokens: out_ns [slices.n]. Also sums context_ns. */
void opi_layers_slices_sum(const opi_layers *layers, uint32_t first, uint32_t end, uint32_t width,
                           double *out_ns, double *out_context_ns);
/* Such a sum at any number of tokens: interpolated; below the smallest number constant; beyond the
 * largest extrapolated from the last two. */
double opi_layers_alone_ns(const opi_layers *layers, const double *ns, double tokens);

static inline double opi_layer_backward_ns(const opi_layer *layer) {
  return layer->input_ns + layer->weight_ns;
}

/* ---- layers_text.c ---- */

/* Reads a profile as PipeDream and DAPPLE write it:
 *   node12 -- what -- forward_compute_time=1.5, backward_compute_time=3,
 *   activation_size=[4096.0; 8.0], parameter_size=0            in one line; ms, bytes
 *   <tab>node11 -- node12                                      an edge
 * in any order. Layers are sorted topologically, smallest number first. samples: per micro-batch,
 * since the files do not say it. Errors: INVALID names line and text: a missing or malformed field,
 * a node twice, an edge to an unknown node, a cycle; LIMIT. */
opipe_status opi_layers_read_text(const char *name, const char *text, size_t n_bytes,
                                  uint32_t samples, const opipe_allocator *allocator,
                                  opi_layers **out_layers, opipe_error *err);

/* ---- layers_json.c ---- */

#define OPI_LAYERS_FORMAT "onnx-pipe profile 1"
/* Errors: INVALID names size, layer and field; UNSUPPORTED, another version; LIMIT. */
opipe_status opi_layers_read_json(const char *name, const void *json, uint64_t n_bytes,
                                  const opipe_allocator *allocator, opi_layers **out_layers,
                                  opipe_error *err);
/* Equal values give equal bytes, and reading them gives the same value. */
void opi_layers_write(const opi_layers *layers, opi_text *text);

#endif /* OPI_LAYERS_H */
