/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of cuDNN's double. */
#ifndef OPIPE_TEST_CUDA_DNN_H_
#define OPIPE_TEST_CUDA_DNN_H_

#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "plugins/backend-cuda/vendor_dnn.h"

#define CUDA_DOUBLE_DECLARE_DNN(member, symbol, result, arguments) result symbol arguments;
CUDA_DNN_FUNCTIONS(CUDA_DOUBLE_DECLARE_DNN)

enum { DNN_AXES = 4, DNN_OPERANDS = 4, DNN_OPERATIONS = 48 };

typedef struct dnn_tensor {
  int64_t id; /* 0: the operation has no such operand */
  int64_t size[DNN_AXES], stride[DNN_AXES];
  int64_t alignment;
  void *at;     /* of a real one, when it is run */
  double value; /* of one that is given by value */
  int dtype;
  bool is_virtual, by_value;
} dnn_tensor;

enum { DNN_X = 0, DNN_B, DNN_T, DNN_Y }; /* operands; the result is the last */
typedef struct dnn_operation {
  dnn_tensor operand[DNN_OPERANDS];
  int64_t axis;
  int type; /* CUDA_DNN_OP_* */
  int mode; /* of an element-wise operation or a reduction */
} dnn_operation;

/* A graph on its way through a stream. */
typedef struct dnn_work {
  void *workspace;
  int64_t workspace_bytes;
  uint32_t n;
  bool unsteady; /* products are summed in another order every time */
  dnn_operation operations[DNN_OPERATIONS];
} dnn_work;
void dnn_run(const void *work);

typedef struct dnn_attribute {
  struct dnn_attribute *next;
  int name, type;
  int64_t n;
  uint64_t bytes[];
} dnn_attribute;

typedef struct dnn_descriptor {
  int type;
  bool is_final;
  dnn_attribute *attributes;
  int64_t engine; /* ENGINE, ENGINE_CONFIG, PLAN */
  const struct dnn_descriptor *graph;
} dnn_descriptor;

/* dnn.c: status, with a text for cudnnGetLastErrorString. */
cudnnStatus_t dnn_fail(int status, const char *why);

/* ---- dnn_check.c ---- */

const dnn_attribute *dnn_find(const dnn_descriptor *d, int name); /* NULL: not set */
int64_t dnn_find_int64(const dnn_descriptor *d, int name, int64_t otherwise);
/* A descriptor that was given, if it is done and of the type; else NULL. */
const dnn_descriptor *dnn_find_final(const dnn_descriptor *d, int name, int type);
cudnnStatus_t dnn_check_tensor(const dnn_descriptor *d);
cudnnStatus_t dnn_check_operation(const dnn_descriptor *d);
cudnnStatus_t dnn_check_graph(const dnn_descriptor *graph);
/* Does it add a tensor of the caller's to scores? */
bool dnn_is_mask(const dnn_operation *op);
/* NOT_SUPPORTED: no engine takes the graph. */
cudnnStatus_t dnn_check_support(const dnn_descriptor *graph);
/* Operations of a graph that is done; how many. */
uint32_t dnn_read_graph(const dnn_descriptor *graph, dnn_operation *out);

#endif
