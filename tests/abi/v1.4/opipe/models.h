/* SPDX-License-Identifier: Apache-2.0 */
/* How models are loaded and bound, and descriptions of them; part of host.h, which has the
 * functions and whose rules for structs apply. Plain data: no thread rule.
 */
#ifndef OPIPE_MODELS_H
#define OPIPE_MODELS_H

#include "types.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tensor by name: an input fixed before constants are folded, or one that becomes a parameter. */
typedef struct opipe_pin {
  const char *input;
  opipe_tensor value; /* host memory; copied, except with OPIPE_LOAD_BORROW */
} opipe_pin;

enum {
  OPIPE_LOAD_GRAPH_ONLY = 1u,
  OPIPE_LOAD_ALLOW_SYMLINKS = 2u,
  OPIPE_LOAD_ALLOW_HARDLINKS = 4u,
  OPIPE_LOAD_BORROW = 8u /* 1.3: dense `parameters` are read where they lie; see on_release */
};

typedef struct opipe_load_params {
  uint32_t struct_size;
  uint32_t flags;   /* OPIPE_LOAD_* */
  const char *path; /* a .onnx file; or NULL, and then */
  const void *data; /* its bytes, borrowed; see on_release */
  uint64_t n_bytes;
  const char *base_dir;         /* with data: folder of external data; NULL: none allowed */
  uint64_t memory_budget_bytes; /* host metadata; 0: 64 MiB + 16 x bytes outside tensors */
  const opipe_pin *parameters;  /* [n_parameters] graph inputs to turn into initializers */
  uint32_t n_parameters;
  uint32_t parameters_stride; /* bytes from pin to pin */
  /* Called once when `data`, or the memory lent with OPIPE_LOAD_BORROW, is no longer needed: when
   * the model and everything made from it (bound models, plans, sessions) are gone. Never called if
   * model_load failed. NULL: the caller needs no notice. [callback: the thread that releases the
   * last of them] */
  void (*on_release)(void *ctx);
  void *release_ctx;
} opipe_load_params;

/* A number for a free dimension. */
typedef struct opipe_dim {
  const char *name; /* a dim_param of the file, or "INPUT.axis" */
  int64_t value;    /* >= 0 */
} opipe_dim;

/* A dimension of a bound model that was free before. Pointers belong to the model. */
typedef struct opipe_dim_info {
  uint32_t struct_size;
  uint32_t flags; /* 0 */
  const char *name;
  int64_t value;
} opipe_dim_info;

enum {
  OPIPE_BIND_NO_FUSE = 1u,  /* patterns are not recognised */
  OPIPE_BIND_DEFAULTS = 2u, /* free dimensions get defaults: default_batch, others 8 (less or more
                               if only that fits); expressions are solved */
  OPIPE_BIND_GRAPH_DROPOUT = 4u,  /* Dropout as the operator is defined; without the flag it is the
                                     identity */
  OPIPE_BIND_DROPOUT_RATIO = 16u, /* every Dropout uses `dropout_ratio` in place of the graph's */
  OPIPE_BIND_TRAIN = 8u /* for training. Float initializers of more than one element are not folded
                           away, nor are those of one element that a module named and that scale or
                           shift activations. Float16 and bfloat16 become float32, initializers and
                           outputs included but not inputs; opipe_train_options.compute decides the
                           type of products. The model is saved in its own types. */
};

#if OPIPE_TARGET_MINOR >= 4
/* A flag for comparing results. Every number about to be rounded to few bits (QuantizeLinear,
 * DynamicQuantizeLinear, rows of accuracy level 4) is first multiplied by 1 + e with |e| <=
 * 2^-bits; bits is 1 to 31, and e differs between patterns 0 to 7. Results of correct kernels may
 * differ by as much as the results of two patterns do. */
#define OPIPE_BIND_NOISE(bits, pattern) ((uint32_t)(bits) << 8 | (uint32_t)(pattern) << 13)
#endif

typedef struct opipe_bind_options {
  uint32_t struct_size;
  uint32_t flags;        /* OPIPE_BIND_* */
  const opipe_dim *dims; /* by name, or "INPUT.axis", which takes precedence over the name */
  const opipe_pin *pins;
  uint32_t n_dims;
  uint32_t n_pins;
  uint32_t dims_stride;    /* bytes from dimension to dimension */
  uint32_t pins_stride;    /* bytes from pin to pin */
  const char *const *keep; /* names of tensors that no fusion may remove; with OPIPE_BIND_TRAIN also
                              one-element initializers to be trained */
  uint32_t n_keep;
  uint32_t default_batch; /* rows of the batch with OPIPE_BIND_DEFAULTS; 0: 1 */
  double dropout_ratio;   /* with OPIPE_BIND_DROPOUT_RATIO, [0, 1) */
} opipe_bind_options;

/* An input or output. Pointers belong to the model (until model_destroy). */
typedef struct opipe_tensor_info {
  uint32_t struct_size;
  uint32_t dtype; /* OPIPE_FLOAT ... */
  const char *name;
  const int64_t *shape;         /* [rank], -1: free (never in bound models) */
  const char *const *dim_names; /* [rank], NULL entries: unnamed; NULL: none has a name */
  uint32_t rank;
  uint32_t flags;      /* 0 */
  int64_t index_limit; /* integer inputs of bound models: values index extents of at least this; 0:
                          unknown */
} opipe_tensor_info;

typedef struct opipe_model_info {
  uint32_t struct_size;
  uint32_t bound; /* 1: made by model_bind */
  uint32_t n_inputs;
  uint32_t n_outputs;
  uint32_t n_file_nodes;       /* as in the file, functions expanded */
  uint32_t n_nodes;            /* bound: nodes left */
  uint32_t n_annotated_stages; /* from IR-11 pipeline_stage, 0: none */
  uint32_t n_dims;             /* bound: dimensions that were free */
  uint64_t parameter_elems;
  uint64_t parameter_bytes;
  double flops; /* bound models: of one request */
} opipe_model_info;

#include "frozen/models.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_MODELS_H */
