/* SPDX-License-Identifier: Apache-2.0 */
/* A model by its layers: what planners decide by when they have no graph, only what its layers
 * take.
 *
 * Layers are numbered in an order in which every edge goes forward; a stage is a run of them. All
 * times and bytes are of one micro-batch on one device, alone. They are known for some numbers of
 * samples in a micro-batch, of which there is at least one. The profiles of PipeDream and DAPPLE
 * are read (layers_text.c), those of the project itself are read and written (layers_json.c);
 * described models are made from their shape (partition/study/arch).
 */
#ifndef OPI_LAYERS_H
#define OPI_LAYERS_H

#include "loader/base/base.h"

enum { OPI_LAYERS_MOST = 65536, OPI_LAYER_SIZES_MOST = 64, OPI_TOKEN_COUNTS_MOST = 64 };

typedef struct opi_layer {
  double flops; /* of its forward; 0: not known */
  double forward_ns, input_ns, weight_ns;
  uint64_t output_bytes; /* of all that it makes for others */
  uint64_t cut_bytes;    /* of all that crosses a cut behind it: its own, and what skips it */
  uint64_t stash_bytes;  /* kept from its forward to its backward; an input layer has none */
  uint64_t param_bytes;
  /* Tensor parallelism, of t devices: so much of times, stash and parameters is divided by t, and
   * so many bytes are summed over the devices in the forward, as many in the backward. */
  double width_share; /* 0 to 1 */
  uint64_t width_bytes;
} opi_layer;

/* What token slices of samples take, where no token depends on later ones. A layer's forward and
 * backward of a slice of l tokens of each of r samples, behind b earlier tokens of each, takes
 *   alone(r l) + r context l (b + l / 2)
 * so that the slices of a sample take as much as the whole of it, but for what alone() has beside
 * its share of the tokens. */
typedef struct opi_token_cost {
  double ns;          /* attention left out */
  double width_share; /* of it, as a layer's */
} opi_token_cost;
typedef struct opi_token_costs {
  uint32_t n;            /* numbers of tokens that are known; 0: none */
  uint32_t *tokens;      /* [n] rising */
  opi_token_cost *alone; /* [n * n_layers] number by number */
  double *context_ns;    /* [n_layers] of a token and one before it; divided by tensor widths */
} opi_token_costs;

typedef struct opi_layers {
  opi_arena arena;
  const char *name;
  const char **names; /* [n_layers] */
  uint32_t *samples;  /* [n_sizes] of a micro-batch, rising */
  opi_layer *at;      /* [n_sizes * n_layers] size by size */
  uint32_t n_layers, n_sizes;
  uint32_t tokens;       /* of a sample; 0: has none */
  uint32_t weight_bytes; /* of one parameter: 4, 2; 0: not known */
  bool halves;       /* backward times of inputs and weights were told apart; else each is half */
  const char *whole; /* why the batch is one micro-batch, which cannot be cut; NULL: it may be */
  opi_token_costs slices;
} opi_layers;

/* Empty: all zero but the arena and the counts. Errors: LIMIT with both numbers; NOMEM. */
opipe_status opi_layers_new(const char *name, uint32_t n_layers, uint32_t n_sizes,
                            const opipe_allocator *allocator, opi_layers **out_layers,
                            opipe_error *err);
void opi_layers_free(opi_layers *layers); /* accepts NULL */
/* Room for what slices of n numbers of tokens take: all zero. Errors: LIMIT with both numbers;
 * NOMEM. */
opipe_status opi_layers_add_slices(opi_layers *layers, uint32_t n, opipe_error *err);
/* Is every number one that planners can add up? Errors: INVALID by layer and field. */
opipe_status opi_layers_check(const opi_layers *layers, opipe_error *err);

/* A layer at any number of samples: as it was given; between two numbers in proportion; beyond the
 * smallest and the largest in proportion to the samples. Parameters do not depend on samples. */
opi_layer opi_layers_at(const opi_layers *layers, uint32_t layer, double samples);
/* Sums of layers [first, end); cut_bytes are those behind the last one, output_bytes its own,
 * width_share that of the times. */
opi_layer opi_layers_sum(const opi_layers *layers, uint32_t first, uint32_t end, double samples);

/* alone() of layers [first, end) together, on one of `width` tensor devices, at each of the numbers
 * of tokens: out_ns [slices.n]; and their context_ns. */
void opi_layers_slices_sum(const opi_layers *layers, uint32_t first, uint32_t end, uint32_t width,
                           double *out_ns, double *out_context_ns);
/* Such sums at any number of tokens: between two numbers in proportion; below the smallest as it;
 * beyond the largest as that goes on from the one before. */
double opi_layers_alone_ns(const opi_layers *layers, const double *ns, double tokens);

static inline double opi_layer_backward_ns(const opi_layer *layer) {
  return layer->input_ns + layer->weight_ns;
}

/* ---- layers_text.c ---- */

/* A profile as PipeDream and DAPPLE write it:
 *   node12 -- what -- forward_compute_time=1.5, backward_compute_time=3,
 *   activation_size=[4096.0; 8.0], parameter_size=0            in one line; ms, bytes
 *   <tab>node11 -- node12                                      an edge
 * in any order. Layers are sorted by their edges, of those that may stand next the smallest number
 * first. samples: of a micro-batch (neither kind of file says it). Errors: INVALID names line and
 * text: a field that is missing or no number, a node twice, an edge to none, a cycle; LIMIT. */
opipe_status opi_layers_read_text(const char *name, const char *text, size_t n_bytes,
                                  uint32_t samples, const opipe_allocator *allocator,
                                  opi_layers **out_layers, opipe_error *err);

/* ---- layers_json.c ---- */

#define OPI_LAYERS_FORMAT "onnx-pipe profile 1"
/* Errors: INVALID names size, layer and field; UNSUPPORTED, another version; LIMIT. */
opipe_status opi_layers_read_json(const char *name, const void *json, uint64_t n_bytes,
                                  const opipe_allocator *allocator, opi_layers **out_layers,
                                  opipe_error *err);
/* The same value, the same bytes; read again it is the same value. */
void opi_layers_write(const opi_layers *layers, opi_text *text);

#endif /* OPI_LAYERS_H */
