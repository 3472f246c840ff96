/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers of rules: what they look at, and what they emit. */
#include "ops/rule.h"

/* ---- looking ---- */

static const opipe_value *value_at(const cuda_rule *r, const uint32_t *list, uint32_t n,
                                   uint32_t i) {
  return i < n && list[i] != OPIPE_NONE ? &r->program->graph->values[list[i]] : NULL;
}

const opipe_value *cuda_in(const cuda_rule *r, uint32_t i) {
  return value_at(r, r->node->in, r->node->n_in, i);
}

const opipe_value *cuda_out(const cuda_rule *r, uint32_t i) {
  return value_at(r, r->node->out, r->node->n_out, i);
}

uint64_t cuda_elems(const opipe_value *value) {
  uint64_t n = 0;
  return opipe_shape_elems(value->shape, value->rank, &n) ? n : 0;
}

uint32_t cuda_size(const opipe_value *value) {
  return opipe_dtype_bits(value->dtype) / 8;
}

bool cuda_is_float(uint32_t dtype) {
  return dtype == OPIPE_FLOAT || dtype == OPIPE_DOUBLE || dtype == OPIPE_FLOAT16 ||
         dtype == OPIPE_BFLOAT16;
}

bool cuda_is_half(uint32_t dtype) {
  return dtype == OPIPE_FLOAT16 || dtype == OPIPE_BFLOAT16;
}

static bool is_shape(const opipe_value *value, const int64_t *shape, uint32_t rank) {
  return value->rank == rank &&
         (rank == 0 || memcmp(value->shape, shape, rank * sizeof shape[0]) == 0);
}

bool cuda_same_shape(const opipe_value *a, const opipe_value *b) {
  return is_shape(a, b->shape, b->rank);
}

bool cuda_named(const opipe_node *node, const char *domain, const char *op) {
  return strcmp(node->domain, domain) == 0 && strcmp(node->op, op) == 0;
}

opipe_status cuda_refuse(const cuda_rule *r, opipe_status status, const char *fmt, ...) {
  char text[256];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return opipe_fail(r->err, status, "node '%.80s' (%s): %s", r->node->name, r->node->op, text);
}

opipe_status cuda_nomem(const cuda_rule *r) {
  return cuda_refuse(r, OPIPE_E_NOMEM, "no memory for its steps");
}

opipe_status cuda_no_kernel(const cuda_rule *r, const opipe_value *value) {
  return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "no kernel for %s", opipe_dtype_name(value->dtype));
}

opipe_status cuda_known_ints(const cuda_rule *r, uint32_t i, const int64_t **out, uint32_t *out_n) {
  const opipe_value *value = cuda_in(r, i);
  if (value == NULL || value->role != OPIPE_VALUE_CONSTANT || value->dtype != OPIPE_INT64 ||
      value->rank > 1)
    return cuda_refuse(r, OPIPE_E_UNSUPPORTED, "input %u is no known list of int64", i);
  *out = value->data;
  *out_n = (uint32_t)cuda_elems(value);
  return OPIPE_OK;
}

opipe_status cuda_axis(const cuda_rule *r, int64_t axis, uint32_t rank, uint32_t *out) {
  if (axis < 0 || axis >= (int64_t)rank)
    return cuda_refuse(r, OPIPE_E_INVALID, "axis %lld of rank %u", (long long)axis, rank);
  *out = (uint32_t)axis;
  return OPIPE_OK;
}

int64_t cuda_extent(const opipe_value *value, uint32_t from, uint32_t to) {
  int64_t n = 1;
  for (uint32_t i = from; i < to; ++i)
    n *= value->shape[i];
  return n;
}

opipe_status cuda_expect(const cuda_rule *r, uint32_t i, uint32_t dtype, const int64_t *shape,
                         uint32_t rank) {
  const opipe_value *value = cuda_out(r, i);
  if (value == NULL)
    return cuda_refuse(r, OPIPE_E_INVALID, "output %u is absent", i);
  if (value->dtype != dtype || !is_shape(value, shape, rank)) {
    return cuda_refuse(r, OPIPE_E_INVALID, "output %u is %s of rank %u, not what its inputs give",
                       i, opipe_dtype_name(value->dtype), value->rank);
  }
  return OPIPE_OK;
}

opipe_status cuda_expect_like(const cuda_rule *r, uint32_t i, const opipe_value *like) {
  return cuda_expect(r, i, like->dtype, like->shape, like->rank);
}

/* ---- loops ---- */

static void drop_axis(cuda_loop *loop, uint32_t axis) {
  for (uint32_t i = axis; i + 1 < loop->rank; ++i) {
    loop->shape[i] = loop->shape[i + 1];
    for (uint32_t k = 0; k < loop->n_operands; ++k)
      loop->stride[k][i] = loop->stride[k][i + 1];
  }
  --loop->rank;
}

/* Does every operand step over axis i as over the end of axis i + 1? */
static bool can_merge(const cuda_loop *loop, uint32_t i) {
  for (uint32_t k = 0; k < loop->n_operands; ++k) {
    if (loop->stride[k][i] != loop->stride[k][i + 1] * loop->shape[i + 1])
      return false;
  }
  return true;
}

opipe_status cuda_loop_merge(const cuda_rule *r, cuda_loop *loop) {
  for (uint32_t i = loop->rank; i > 0; --i) {
    if (loop->shape[i - 1] == 1)
      drop_axis(loop, i - 1);
  }
  for (uint32_t i = loop->rank; i > 1; --i) {
    if (can_merge(loop, i - 2)) {
      loop->shape[i - 1] *= loop->shape[i - 2];
      drop_axis(loop, i - 2);
    }
  }
  return loop->rank <= CUDA_AXES
             ? OPIPE_OK
             : cuda_refuse(r, OPIPE_E_UNSUPPORTED, "%u axes that cannot be merged, at most %d",
                           loop->rank, CUDA_AXES);
}

/* ---- emitting ---- */

/* Steps that would write nothing are made, pointed and dropped. */
static bool writes_nothing(const cuda_rule *r) {
  for (uint32_t i = 0; i < r->node->n_out; ++i) {
    const opipe_value *value = cuda_out(r, i);
    if (value != NULL && value->n_bytes > 0)
      return false;
  }
  return true;
}

static opipe_status make_step(cuda_rule *r, uint32_t kind) {
  cuda_step *step = CUDA_POOL_ARRAY(&r->program->pool, cuda_step, 1);
  if (step == NULL)
    return cuda_nomem(r);
  step->kind = kind;
  step->node = r->node;
  step->overwrites = OPIPE_NONE;
  r->step = step;
  return OPIPE_OK;
}

static void enlist(cuda_rule *r) {
  opipe_program *program = r->program;
  r->step->index = program->n_steps++;
  ++program->n_kernels;
  *program->last_step = r->step;
  program->last_step = &r->step->next;
}

static opipe_status append(cuda_rule *r, uint32_t kind) {
  CUDA_TRY(make_step(r, kind));
  if (!writes_nothing(r))
    enlist(r);
  return OPIPE_OK;
}

opipe_status cuda_emit_step(cuda_rule *r, uint32_t kind) {
  CUDA_TRY(make_step(r, kind));
  enlist(r);
  return OPIPE_OK;
}

/* A stand-in: 0x7e5a, the tag's number in 8 bits, bytes in 40. */
static const uint64_t TAG = UINT64_C(0x7e5a) << 48, TAG_BYTES = (UINT64_C(1) << 40) - 1;

void *cuda_at(cuda_rule *r, uint32_t value, int64_t bytes) {
  uint64_t tag = 0;
  if (value == OPIPE_NONE)
    return NULL;
  const cuda_part *part = r->program->matched.parts != NULL && value < r->program->graph->n_values
                              ? &r->program->matched.parts[value]
                              : NULL;
  if (part != NULL && part->whole != OPIPE_NONE) {
    bytes += part->first * (int64_t)cuda_size(&r->program->graph->values[value]);
    value = part->whole;
  }
  while (tag < r->n_tags && r->tags[tag] != value)
    ++tag;
  if (tag == r->n_tags && tag < CUDA_TAGS)
    r->tags[r->n_tags++] = value;
  return (void *)(uintptr_t)(TAG | tag << 40 | (uint64_t)bytes);
}

void *cuda_at_in(cuda_rule *r, uint32_t i) {
  return cuda_at(r, i < r->node->n_in ? r->node->in[i] : OPIPE_NONE, 0);
}

uint32_t cuda_accumulator(const cuda_rule *r, uint32_t i) {
  return r->program->matched.adds_to != NULL && cuda_out(r, i) != NULL
             ? r->program->matched.adds_to[r->node->out[i]]
             : OPIPE_NONE;
}

void *cuda_at_out(cuda_rule *r, uint32_t i) {
  const uint32_t sum = cuda_accumulator(r, i);
  if (sum != OPIPE_NONE)
    return cuda_at(r, sum, 0);
  return cuda_at(r, i < r->node->n_out ? r->node->out[i] : OPIPE_NONE, 0);
}

opipe_status cuda_at_status(cuda_rule *r, cuda_status **out_status, uint32_t *out_node) {
  opipe_device *device = r->program->device;
  CUDA_TRY(cuda_names_add(&device->names, device->host, r->node->name, out_node, r->err));
  *out_status = cuda_at(r, CUDA_AT_STATUS, 0);
  r->program->has_block = true;
  r->program->has_reports = true;
  return OPIPE_OK;
}

void *cuda_at_counters(cuda_rule *r) {
  r->program->has_block = true;
  r->program->has_counters = true;
  return cuda_at(r, CUDA_AT_COUNTERS, 0);
}

opipe_status cuda_point(cuda_rule *r, size_t offset, uint32_t value, int64_t bytes) {
  cuda_patch *patch = CUDA_POOL_ARRAY(&r->program->pool, cuda_patch, 1);
  if (patch == NULL)
    return cuda_nomem(r);
  *patch = (cuda_patch){r->step->patches, value, (uint32_t)offset, bytes};
  r->step->patches = patch;
  return OPIPE_OK;
}

/* Finds the stand-ins in the last step's arguments. */
static opipe_status point_all(cuda_rule *r, uint32_t n_bytes) {
  const unsigned char *args = r->step->launch.block_args.args;
  for (uint32_t at = 0; at + sizeof(uint64_t) <= n_bytes; at += 8) {
    uint64_t word = 0;
    memcpy(&word, args + at, sizeof word);
    const uint64_t tag = word >> 40 & 0xff;
    if (word >> 48 == TAG >> 48 && tag < r->n_tags)
      CUDA_TRY(cuda_point(r, at, r->tags[tag], (int64_t)(word & TAG_BYTES)));
  }
  return OPIPE_OK;
}

opipe_status cuda_emit_all(cuda_rule *r, const cuda_launch *launches, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) {
    CUDA_TRY(append(r, CUDA_STEP_LAUNCH));
    r->step->launch = launches[i];
    CUDA_TRY(point_all(r, launches[i].args_bytes));
  }
  r->n_tags = 0;
  return OPIPE_OK;
}

opipe_status cuda_emit(cuda_rule *r, const cuda_launch *launch) {
  return cuda_emit_all(r, launch, 1);
}

void cuda_may_overwrite(cuda_rule *r, uint32_t i) {
  const uint32_t value = r->node->in[i];
  uint32_t uses = 0;
  for (uint32_t k = 0; k < r->node->n_in; ++k) {
    uses += r->node->in[k] != OPIPE_NONE &&
            cuda_root(r->program, r->node->in[k]) == cuda_root(r->program, value);
  }
  if (uses == 1 && r->step->overwrites == OPIPE_NONE) {
    r->step->overwrites = value;
    r->step->result = r->node->out[0];
  }
}

void cuda_want_workspace(cuda_rule *r, uint64_t n_bytes) {
  if (n_bytes > r->step->workspace_bytes)
    r->step->workspace_bytes = n_bytes;
}

opipe_status cuda_emit_copy(cuda_rule *r, uint32_t to, uint32_t from, uint64_t n_bytes) {
  CUDA_TRY(append(r, CUDA_STEP_COPY));
  const cuda_copy_args args = {0, 0, n_bytes};
  memcpy(r->step->launch.block_args.args, &args, sizeof args);
  CUDA_TRY(cuda_point(r, offsetof(cuda_copy_args, to), to, 0));
  return cuda_point(r, offsetof(cuda_copy_args, from), from, 0);
}

opipe_status cuda_view(cuda_rule *r, uint32_t i, uint32_t of) {
  opipe_program *program = r->program;
  const uint32_t out = r->node->out[i];
  const uint32_t root = cuda_root(program, of);
  const opipe_value *values = program->graph->values;
  if (values[out].n_bytes != values[of].n_bytes) {
    return cuda_refuse(r, OPIPE_E_INVALID, "%llu bytes are to be viewed as %llu",
                       (unsigned long long)values[of].n_bytes,
                       (unsigned long long)values[out].n_bytes);
  }
  if (values[out].role == OPIPE_VALUE_TEMP) {
    program->alias[out] = root;
    return OPIPE_OK;
  }
  if (values[root].role == OPIPE_VALUE_TEMP && program->storages[root].kind == CUDA_PLACE_NONE) {
    program->storages[root].kind = CUDA_PLACE_BOUNDARY;
    program->storages[root].slot = values[out].slot;
    program->alias[out] = root;
    return OPIPE_OK;
  }
  return cuda_emit_copy(r, out, of, values[out].n_bytes);
}

opipe_status cuda_emit_zeros(cuda_rule *r) {
  const opipe_value *y = cuda_out(r, 0);
  const cuda_fill_args args = {
      .out = cuda_at_out(r, 0), .n = (int64_t)cuda_elems(y), .size = cuda_size(y)};
  cuda_launch launch;
  return cuda_plan_fill(&args, &launch) ? cuda_emit(r, &launch) : cuda_no_kernel(r, y);
}

opipe_status cuda_emit_plan(cuda_rule *r, const cuda_dnn_plan *plan, const cuda_dnn_args *args,
                            uint64_t workspace_bytes) {
  _Static_assert(sizeof *args <= CUDA_ARGS_BYTES, "arguments of a plan fit in a step");
  CUDA_TRY(append(r, CUDA_STEP_PLAN));
  r->step->plan = plan;
  memcpy(r->step->launch.block_args.args, args, sizeof *args);
  CUDA_TRY(point_all(r, sizeof *args));
  cuda_want_workspace(r, workspace_bytes);
  return OPIPE_OK;
}

opipe_status cuda_emit_product(cuda_rule *r, const cuda_product *product) {
  CUDA_TRY(append(r, CUDA_STEP_PRODUCT));
  cuda_product *copy = CUDA_POOL_ARRAY(&r->program->pool, cuda_product, 1);
  if (copy == NULL)
    return cuda_nomem(r);
  *copy = *product;
  r->step->product = copy;
  opipe_error why = OPIPE_ERROR_INIT;
  const opipe_status status = cuda_product_choose(r->program->device, copy, &why);
  if (status < 0)
    return cuda_refuse(r, status, "%s", why.message);
  cuda_want_workspace(r, copy->workspace_at + copy->choice.workspace_bytes);
  return OPIPE_OK;
}
