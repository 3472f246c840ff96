/* SPDX-License-Identifier: Apache-2.0 */
/* Sets whose values change: owned parameter sets and gradient sets.
 *
 *   fp32       programs read the master, or a rounded copy that follows it
 *   half types programs read a copy that follows the master, of fp32: [control] calls and refresh
 *              round it anew
 *   gradients  one accumulator of fp32 per parameter, dense as the master is: nothing to fold
 *
 * Copies never move: a binding's addresses hold as long as the set.
 */
#include "ops/rule.h"
#include "params.h"

/* Key of the copy that the optimizer changes; 0: the parameter is of a type that is not trained. */
static uint32_t master_key(const cuda_param_state *state) {
  const uint32_t dtype = state->source.dtype;
  return dtype == OPIPE_FLOAT ? CUDA_LAYOUT_OWN : cuda_is_half(dtype) ? CUDA_LAYOUT_F32 : 0u;
}

static int64_t elements_of(const opipe_param_source *source) {
  uint64_t n = 0;
  return opipe_shape_elems(source->shape, source->rank, &n) ? (int64_t)n : 0;
}

/* One copy from another. */
static opipe_status convert(const opipe_params *params, uint32_t slot, uint32_t from, uint32_t to,
                            CUstream stream, opipe_error *err) {
  const cuda_param_state *state = &params->states[slot];
  const uint32_t types[] = {[CUDA_LAYOUT_OWN] = state->source.dtype,
                            [CUDA_LAYOUT_F32] = OPIPE_FLOAT,
                            [CUDA_LAYOUT_BF16] = OPIPE_BFLOAT16,
                            [CUDA_LAYOUT_F16] = OPIPE_FLOAT16};
  const int64_t n = elements_of(&state->source);
  const cuda_map_args args = {.out = (void *)(uintptr_t)state->copies[to - 1].address,
                              .in = {(const void *)(uintptr_t)state->copies[from - 1].address},
                              .n = n,
                              .shape = {n},
                              .stride = {{1}},
                              .rank = 1,
                              .op = CUDA_MAP_CAST};
  cuda_launch launch;
  CUfunction kernel = NULL;
  if (n == 0)
    return OPIPE_OK;
  if (!cuda_plan_map(&args, types[from], types[to], &launch))
    return opipe_fail(err, OPIPE_E_INTERNAL, "backend cuda: no kernel rounds parameters");
  CUDA_TRY(cuda_find_kernel(params->device, &launch, &kernel, err));
  return cuda_launch_on(params->device, kernel, &launch, launch.block_args.args, stream, err);
}

opipe_status cuda_train_narrow(const opipe_params *params, uint32_t slot, CUstream stream,
                               opipe_error *err) {
  return convert(params, slot, CUDA_LAYOUT_F32, CUDA_LAYOUT_OWN, stream, err);
}

/* A copy of zeros, where there is none. */
static opipe_status reserve_zeros(opipe_params *params, uint32_t slot, uint32_t key,
                                  uint64_t n_bytes, const char *what, opipe_error *err) {
  opipe_device *device = params->device;
  cuda_param_copy *copy = &params->states[slot].copies[key - 1];
  if (copy->address != 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_params_reserve(params, slot, key, n_bytes, err));
  return cuda_result(
      device->place,
      device->place->driver->fill(copy->address, 0, (size_t)copy->n_bytes, device->control), what,
      err);
}

opipe_status cuda_train_widen(opipe_params *params, uint32_t slot, opipe_error *err) {
  const uint64_t n = (uint64_t)elements_of(&params->states[slot].source);
  CUDA_TRY(cuda_params_own_copy(params, slot, err));
  CUDA_TRY(reserve_zeros(params, slot, CUDA_LAYOUT_F32, n * sizeof(float), "a master", err));
  CUDA_TRY(convert(params, slot, CUDA_LAYOUT_OWN, CUDA_LAYOUT_F32, params->device->control, err));
  return cuda_params_settle(params->device, CUDA_OK, "a master", err);
}

opipe_status cuda_train_round(opipe_params *params, uint32_t slot, uint32_t key, opipe_error *err) {
  const uint64_t n = (uint64_t)elements_of(&params->states[slot].source);
  CUDA_TRY(cuda_params_own_copy(params, slot, err));
  CUDA_TRY(reserve_zeros(params, slot, key, n * sizeof(uint16_t), "a rounded copy", err));
  CUDA_TRY(convert(params, slot, CUDA_LAYOUT_OWN, key, params->device->control, err));
  return cuda_params_settle(params->device, CUDA_OK, "a rounded copy", err);
}

opipe_status cuda_train_round_all(const opipe_params *params, uint32_t slot, CUstream stream,
                                  opipe_error *err) {
  for (uint32_t key = CUDA_LAYOUT_BF16; key <= CUDA_LAYOUT_F16; ++key) {
    if (params->states[slot].copies[key - 1].address != 0)
      CUDA_TRY(convert(params, slot, CUDA_LAYOUT_OWN, key, stream, err));
  }
  return OPIPE_OK;
}

bool cuda_train_rounds_twice(const opipe_params *params, uint32_t slot) {
  const cuda_param_state *state = &params->states[slot];
  return state->copies[CUDA_LAYOUT_BF16 - 1].address != 0 &&
         state->copies[CUDA_LAYOUT_F16 - 1].address != 0;
}

/* ---- gradient sets ---- */

/* A gradient has its parameter's name and shape, in fp32. */
static opipe_status take_gradient(opipe_params *gradients, uint32_t slot, opipe_error *err) {
  opipe_param_source source = gradients->of->states[slot].source;
  source.data = NULL;
  source.dtype = OPIPE_FLOAT;
  return __builtin_mul_overflow((uint64_t)elements_of(&source), sizeof(float), &source.n_bytes)
             ? opipe_fail(err, OPIPE_E_LIMIT, "parameter '%.80s' is too large", source.name)
             : cuda_params_take(gradients, slot, &source, err);
}

opipe_status cuda_gradients_create(opipe_params *params, opipe_params **out_gradients,
                                   opipe_error *err) {
  opipe_params *gradients = NULL;
  if (!params->owned || params->of != NULL)
    return opipe_fail(err, OPIPE_E_STATE, "gradients_create: the set is not an owned one");
  opipe_status status = cuda_params_new(params->device, params->n, &gradients, err);
  if (status >= 0) {
    gradients->owned = true;
    gradients->of = params;
  }
  for (uint32_t i = 0; status >= 0 && i < params->n; ++i)
    status = take_gradient(gradients, i, err);
  if (status < 0)
    cuda_params_free(gradients);
  else
    *out_gradients = gradients;
  return status;
}

static opipe_status make_accumulator(opipe_params *gradients, uint32_t slot, opipe_error *err) {
  opipe_params *weights = gradients->of;
  opipe_device *device = gradients->device;
  cuda_param_copy *copy = &gradients->states[slot].copies[CUDA_LAYOUT_OWN - 1];
  const uint32_t key = master_key(&weights->states[slot]);
  if (copy->address != 0)
    return OPIPE_OK;
  if (key == 0) {
    return opipe_fail(err, OPIPE_E_UNSUPPORTED, "parameter '%.80s' is %s: it has no master",
                      weights->states[slot].source.name,
                      opipe_dtype_name(weights->states[slot].source.dtype));
  }
  if (weights->states[slot].copies[key - 1].address == 0) {
    CUDA_TRY(key == CUDA_LAYOUT_OWN ? cuda_params_own_copy(weights, slot, err)
                                    : cuda_train_widen(weights, slot, err));
  }
  CUDA_TRY(cuda_params_reserve(gradients, slot, CUDA_LAYOUT_OWN,
                               gradients->states[slot].source.n_bytes, err));
  return cuda_params_settle(
      device, device->place->driver->fill(copy->address, 0, (size_t)copy->n_bytes, device->control),
      "an accumulator", err);
}

opipe_status cuda_train_prepare(opipe_params *gradients, const opipe_program *program,
                                opipe_error *err) {
  for (uint32_t i = 0; i < program->n_gradients; ++i)
    CUDA_TRY(make_accumulator(gradients, program->gradients[i].slot, err));
  return OPIPE_OK;
}

opipe_status cuda_program_gradients(const opipe_program *program, opipe_param_layout *out_layouts,
                                    uint32_t *io_count, opipe_error *err) {
  return cuda_put_layouts(program, program->gradients, program->n_gradients, "program_gradients",
                          out_layouts, io_count, err);
}

/* ---- masters ---- */

static opipe_status check_slot(const opipe_params *params, uint32_t slot, const char *what,
                               opipe_error *err) {
  return slot < params->n && params->owned
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID, "%s: slot %u of %s set of %u", what, slot,
                          params->owned ? "a" : "a read-only", params->n);
}

/* NULL: none. */
static cuda_param_copy *master_of(opipe_params *params, uint32_t slot) {
  cuda_param_state *state = &params->states[slot];
  const uint32_t key = master_key(state);
  return key == 0 || state->copies[key - 1].address == 0 ? NULL : &state->copies[key - 1];
}

opipe_status cuda_params_master(opipe_params *params, uint32_t slot, opipe_region *out_region,
                                opipe_error *err) {
  CUDA_TRY(check_slot(params, slot, "params_master", err));
  cuda_param_copy *copy = master_of(params, slot);
  memset(out_region, 0, sizeof *out_region);
  if (copy != NULL)
    *out_region = (opipe_region){copy, 0, copy->n_bytes};
  return OPIPE_OK;
}

opipe_status cuda_gradients_fold(opipe_params *gradients, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err) {
  (void)queue;
  return check_slot(gradients, slot, "gradients_fold", err);
}

static bool has_rounded(const cuda_param_state *state) {
  return state->copies[CUDA_LAYOUT_BF16 - 1].address != 0 ||
         state->copies[CUDA_LAYOUT_F16 - 1].address != 0;
}

opipe_status cuda_params_refresh(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                 opipe_error *err) {
  CUDA_TRY(check_slot(params, slot, "params_refresh", err));
  const cuda_param_state *state = &params->states[slot];
  if (state->copies[CUDA_LAYOUT_F32 - 1].address == 0 && !has_rounded(state))
    return OPIPE_OK;
  CUDA_TRY(cuda_enter_queue(queue, "params_refresh", err));
  return cuda_leave_queue(queue,
                          has_rounded(state)
                              ? cuda_train_round_all(params, slot, queue->stream, err)
                              : cuda_train_narrow(params, slot, queue->stream, err),
                          err);
}

opipe_status cuda_train_follow(opipe_params *params, uint32_t slot, const float *weight, uint64_t n,
                               void **out_half, uint32_t *out_dtype, opipe_error *err) {
  CUDA_TRY(check_slot(params, slot, "update", err));
  const cuda_param_state *state = &params->states[slot];
  const cuda_param_copy *master = master_of(params, slot);
  const uint64_t n_own = (uint64_t)elements_of(&state->source);
  if (master == NULL || master->address != (CUdeviceptr)(uintptr_t)weight || n < n_own) {
    return opipe_fail(err, OPIPE_E_INVALID,
                      "update: %llu elements that are not the master of parameter '%.80s', of %llu",
                      (unsigned long long)n, state->source.name, (unsigned long long)n_own);
  }
  if (state->copies[CUDA_LAYOUT_F32 - 1].address != 0) {
    *out_half = (void *)(uintptr_t)state->copies[CUDA_LAYOUT_OWN - 1].address;
    *out_dtype = state->source.dtype;
  } else if (has_rounded(state)) { /* of two, the other is cuda_train_rounds_twice's */
    const bool bf16 = state->copies[CUDA_LAYOUT_BF16 - 1].address != 0;
    const uint32_t key = bf16 ? CUDA_LAYOUT_BF16 : CUDA_LAYOUT_F16;
    *out_half = (void *)(uintptr_t)state->copies[key - 1].address;
    *out_dtype = bf16 ? OPIPE_BFLOAT16 : OPIPE_FLOAT16;
  }
  return OPIPE_OK;
}

/* Master and a dense region of fp32. */
static opipe_status copy_dense(opipe_params *params, opipe_queue *queue, uint32_t slot,
                               const opipe_region *region, bool out, opipe_error *err) {
  const char *what = out ? "params_export" : "params_import";
  opipe_device *device = params->device;
  CUdeviceptr address = 0;
  CUDA_TRY(check_slot(params, slot, what, err));
  const opipe_param_source *source = &params->states[slot].source;
  const cuda_param_copy *copy = master_of(params, slot);
  const uint64_t n_bytes = (uint64_t)elements_of(source) * sizeof(float);
  CUDA_TRY(cuda_region(device, region, what, &address, err));
  if (copy == NULL) {
    return opipe_fail(err, OPIPE_E_STATE, "%s: parameter '%.80s' has no master", what,
                      source->name);
  }
  if (region->n_bytes < n_bytes) {
    return opipe_fail(err, OPIPE_E_INVALID, "%s: '%.80s' needs %llu bytes, the region has %llu",
                      what, source->name, (unsigned long long)n_bytes,
                      (unsigned long long)region->n_bytes);
  }
  if (n_bytes == 0)
    return OPIPE_OK;
  CUDA_TRY(cuda_enter_queue(queue, what, err));
  const opipe_status status = cuda_result(
      device->place,
      device->place->driver->copy(out ? address : copy->address, out ? copy->address : address,
                                  (size_t)n_bytes, queue->stream),
      what, err);
  return cuda_leave_queue(queue, status, err);
}

opipe_status cuda_params_export(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *dst, opipe_error *err) {
  return copy_dense(params, queue, slot, dst, true, err);
}

opipe_status cuda_params_import(opipe_params *params, opipe_queue *queue, uint32_t slot,
                                const opipe_region *src, opipe_error *err) {
  return copy_dense(params, queue, slot, src, false, err);
}
