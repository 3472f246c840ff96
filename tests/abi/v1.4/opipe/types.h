/* SPDX-License-Identifier: Apache-2.0 */
/* Values that cross the borders: element types, tensors as views, and the static graph that a
 * backend compiles.
 *
 * There are two tensor forms. opipe_tensor is the view at the host's border and has the layout of
 * DLPack's DLTensor (a DLTensor* may be passed as it is). opipe_value describes a value of a static
 * graph, whose storage lies elsewhere.
 */
#ifndef OPIPE_TYPES_H
#define OPIPE_TYPES_H

#include "abi.h"
#include "dtypes.h"

#ifdef __cplusplus
extern "C" {
#endif

#define OPIPE_NONE UINT32_MAX /* an absent optional input or output */
#define OPIPE_MAX_RANK 16

enum { OPIPE_DL_CPU = 1, OPIPE_DL_CUDA = 2 };

typedef struct opipe_dtype {
  uint8_t code; /* OPIPE_DL_* */
  uint8_t bits;
  uint16_t lanes; /* 1 */
} opipe_dtype;

/* A tensor at the host's border: a view that owns nothing. Same layout as DLTensor.
 *   data     memory of (device_type, device_id); the first element is at data + byte_offset
 *   shape    [rank] elements
 *   strides  [rank] in elements, or NULL for dense row-major
 * The function that takes or returns the view states the lifetime of data, shape and strides. */
typedef struct opipe_tensor {
  void *data;
  int32_t device_type;
  int32_t device_id;
  int32_t rank;
  opipe_dtype dtype;
  const int64_t *shape;
  const int64_t *strides;
  uint64_t byte_offset;
} opipe_tensor;
OPIPE_FROZEN_SIZE(opipe_tensor, 48);

/* Says when a tensor may be touched. NONE: at once. HOST_FLAG: when the uint32_t at `handle` is
 * non-zero (release order). From 1.3 on also native handles, if the device of a rank that touches
 * the tensor knows them (CUDA: a CUstream, a CUevent; otherwise OPIPE_E_UNSUPPORTED):
 *   NATIVE_STREAM  ready: once all work is done that the stream had before the call.
 *                  done: work given to the stream after the fence was set waits for it.
 *                  handle NULL: the default stream.
 *   NATIVE_EVENT   ready: once the work before the event's record is done. The host records it
 *                  before the call, and not again until the request is queued (request_queued).
 *                  done: the library records it. */
enum {
  OPIPE_FENCE_NONE = 0,
  OPIPE_FENCE_HOST_FLAG = 1,
  OPIPE_FENCE_NATIVE_STREAM = 2,
  OPIPE_FENCE_NATIVE_EVENT = 3
};
typedef struct opipe_fence {
  uint32_t kind;
  uint32_t reserved;
  void *handle;
} opipe_fence;
OPIPE_FROZEN_SIZE(opipe_fence, 16);

/* ---- static graphs: what a backend sees ---- */

/* Role of a value in a program. */
enum {
  OPIPE_VALUE_TEMP =
      0, /* made and used inside the program; the backend places it in the arena slot */
  OPIPE_VALUE_CONSTANT = 1,  /* known at compile time: `data` holds it (host memory, dense) */
  OPIPE_VALUE_PARAMETER = 2, /* `slot`: index in the parameter set */
  OPIPE_VALUE_INPUT = 3,     /* `slot`: index of its boundary region at bind; read only */
  OPIPE_VALUE_OUTPUT = 4,  /* `slot`: index of its boundary region at bind; written by the program,
                              may be read by it afterwards */
  OPIPE_VALUE_STATE = 5,   /* reserved: a tensor kept on the device between runs */
  OPIPE_VALUE_SCALAR = 6,  /* `slot`: index in the per-run table of int64 scalars; rank 0, dtype
                              INT64 (the number) or DOUBLE (its bits) */
  OPIPE_VALUE_GRADIENT = 7 /* `slot`: index in the parameter set; the accumulator of that
                              parameter's gradient in the bound gradient set. Only as the output of
                              opipe.Accumulate (fp32, the parameter's shape) */
};

typedef struct opipe_value {
  const char *name;     /* unique in the graph */
  const int64_t *shape; /* [rank], all >= 0 */
  const void
      *data; /* role CONSTANT: n_bytes of host memory, valid as long as the program; else NULL */
  uint64_t n_bytes; /* dense row-major size; sub-byte types packed */
  uint32_t dtype;   /* OPIPE_FLOAT ... */
  uint32_t rank;
  uint32_t role; /* OPIPE_VALUE_* */
  uint32_t slot;
  uint32_t flags;     /* 0; others are refused */
  uint32_t reserved;  /* 0 */
  uint64_t reserved2; /* 0 */
} opipe_value;
OPIPE_FROZEN_SIZE(opipe_value, 64);

enum {
  OPIPE_ATTR_INT = 1,
  OPIPE_ATTR_FLOAT = 2,
  OPIPE_ATTR_STRING = 3,
  OPIPE_ATTR_INTS = 4,
  OPIPE_ATTR_FLOATS = 5,
  OPIPE_ATTR_TENSOR = 6,
  OPIPE_ATTR_STRINGS = 7,
  OPIPE_ATTR_GRAPH =
      8 /* 1.3: only in build.h; backends never see one. data is an opipe_build_graph */
};

/* A dense tensor literal in host memory. */
typedef struct opipe_literal {
  const void *data;
  const int64_t *shape;
  uint64_t n_bytes;
  uint32_t dtype;
  uint32_t rank;
} opipe_literal;
OPIPE_FROZEN_SIZE(opipe_literal, 32);

typedef struct opipe_attr {
  const char *name;
  const void *data; /* STRING: char[n + 1]; INTS: int64_t[n]; FLOATS: float[n]; TENSOR:
                       opipe_literal; STRINGS: const char *[n]; else NULL */
  int64_t i;
  double f;
  uint32_t kind; /* OPIPE_ATTR_* */
  uint32_t n;    /* elements behind `data` */
} opipe_attr;
OPIPE_FROZEN_SIZE(opipe_attr, 40);

/* The pass that a node belongs to: forward, gradient for an input gradient, gradient only for
 * weight gradients, update. */
enum {
  OPIPE_PASS_FORWARD = 0,
  OPIPE_PASS_BACKWARD_INPUT = 1,
  OPIPE_PASS_BACKWARD_WEIGHT = 2,
  OPIPE_PASS_UPDATE = 3,
  OPIPE_PASS_BACKWARD = 4 /* I and W in one */
};

/* A node in its canonical form, that of the operator's newest known version (listed in
 * abi/guide/operators.md). Inputs that the operator requires to be known (axes, shapes, pads, ...)
 * are CONSTANT values. */
typedef struct opipe_node {
  const char *name;
  const char *op;
  const char *domain;  /* "" for ai.onnx, "com.microsoft" */
  const uint32_t *in;  /* [n_in] value indices, OPIPE_NONE where absent */
  const uint32_t *out; /* [n_out] */
  const opipe_attr *attrs;
  uint32_t n_in;
  uint32_t n_out;
  uint32_t n_attrs;
  uint32_t version;  /* opset of the canonical form */
  uint32_t pass;     /* OPIPE_PASS_* */
  uint32_t flags;    /* 0; others are refused */
  uint64_t reserved; /* 0 */
} opipe_node;
OPIPE_FROZEN_SIZE(opipe_node, 80);

/* A program to compile: nodes in an executable order. All memory behind the pointers stays valid
 * and unchanged as long as the program. */
typedef struct opipe_graph {
  uint32_t struct_size;
  uint32_t n_values;
  const opipe_value *values;
  const opipe_node *nodes;
  uint32_t n_nodes;
  uint32_t
      n_boundaries;   /* regions that bind takes: inputs and outputs, numbered by `slot` from 0 */
  uint32_t n_params;  /* parameters of the set that `slot` of PARAMETER values indexes */
  uint32_t n_scalars; /* int64 values that run takes */
} opipe_graph;

/* ---- descriptions, for opipe_plan_params of host.h ---- */

/* 1.1. Properties of a device that cannot be asked from here. No plugin of its kind is opened: the
 * device is assumed to run every node, its rates decide the cut, and its bytes are estimates.
 * Numbers out of range: INVALID, with the field. */
typedef struct opipe_device_description {
  double flops;          /* fp32 operations per second of the whole device, 1 to 1e30; 0: unknown */
  double bandwidth;      /* bytes per second of its memory, 1 to 1e30; 0: unknown */
  double launch_ns;      /* fixed cost of one node, 0 to 1e15 */
  uint64_t memory_bytes; /* of the device: the cap if the device choice has none; 0: no cap */
  uint32_t max_threads;  /* useful number of compute threads; 0: not applicable */
  uint32_t alignment;    /* of regions; a power of two from 1 to 2^24 */
  uint32_t flags;        /* OPIPE_DEVICE_* of backend.h */
  uint32_t domain;       /* devices of one kind in one domain share host memory */
} opipe_device_description;

/* 1.1. Properties of a transport, which is neither opened nor asked. */
typedef struct opipe_link_description {
  uint32_t struct_size;
  uint32_t rule;        /* OPIPE_RULE_* of transport.h */
  uint32_t thread_rule; /* OPIPE_THREADS_* of transport.h */
  uint32_t flags;       /* OPIPE_TRANSPORT_* of transport.h */
  uint32_t max_ranks;   /* 0: no limit */
  uint32_t reserved;    /* 0 */
  double latency_ns;    /* of one message, 0 to 1e15 */
  double bandwidth;     /* bytes per second, 1 to 1e18; 0: passes addresses, copies nothing */
} opipe_link_description;

#include "frozen/types.h"

#ifdef __cplusplus
}
#endif
#endif /* OPIPE_TYPES_H */
