/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of parameters: which a program wants, their sizes, and how they are filled.
 *
 * A layout depends on the parameter and on the operators that read it, never on the batch; programs
 * of different shapes share one copy in a set.
 */
#include "ops/op.h"

bool cpu_layout_bytes(uint32_t kind, const int64_t *shape, uint32_t rank, uint32_t dtype,
                      uint64_t *out_bytes) {
  uint64_t n = 0;
  *out_bytes = 0;
  switch (kind) {
    case CPU_LAYOUT_RAW:
      return true;
    case CPU_LAYOUT_COPY:
      return opipe_tensor_bytes(dtype, shape, rank, out_bytes);
    case CPU_LAYOUT_F32:
      return opipe_shape_elems(shape, rank, &n) && !__builtin_mul_overflow(n, 4ull, out_bytes);
    case CPU_LAYOUT_PANEL:
    case CPU_LAYOUT_PANEL_T:
      return rank == 2 &&
             cpu_pack_bytes(CPU_PACK_F32_PANEL, shape[kind == CPU_LAYOUT_PANEL ? 0 : 1],
                            shape[kind == CPU_LAYOUT_PANEL ? 1 : 0], out_bytes);
    default:
      return false;
  }
}

/* Converts element by element through aligned scratch, since a source may lie at any address. */
static void fill_f32(const cpu_exec *exec, const opipe_param_source *source, const void *dense,
                     float *out) {
  enum { CHUNK = 1024 };
  uint64_t n = 0;
  const uint32_t size = cpu_dtype_bytes(source->dtype);
  _Alignas(CPU_ALIGN_BYTES) unsigned char chunk[CHUNK * 4];
  (void)opipe_shape_elems(source->shape, source->rank, &n);
  for (uint64_t i = 0; i < n; i += CHUNK) {
    const uint64_t count = n - i < CHUNK ? n - i : CHUNK;
    memcpy(chunk, (const char *)dense + i * size, (size_t)(count * size));
    cpu_convert(exec, cpu_storage_type(source->dtype), chunk, CPU_F32, out + i, (int64_t)count);
  }
}

void cpu_layout_fill(const cpu_exec *exec, uint32_t kind, const opipe_param_source *source,
                     const void *dense, void *data) {
  const cpu_exec alone = {exec->kernels, NULL};
  if (source->n_bytes == 0) {
    return;
  }
  if (kind == CPU_LAYOUT_COPY) {
    memcpy(data, dense, (size_t)source->n_bytes);
  } else if (kind == CPU_LAYOUT_F32) {
    fill_f32(&alone, source, dense, data);
  } else if (kind == CPU_LAYOUT_PANEL || kind == CPU_LAYOUT_PANEL_T) {
    const bool transposed = kind == CPU_LAYOUT_PANEL_T;
    const int64_t columns = source->shape[1];
    const cpu_pack_source matrix = {.data = dense,
                                    .dtype = cpu_storage_type(source->dtype),
                                    .k = source->shape[transposed ? 1 : 0],
                                    .n = source->shape[transposed ? 0 : 1],
                                    .k_stride = transposed ? 1 : columns,
                                    .n_stride = transposed ? columns : 1};
    cpu_pack(exec, CPU_PACK_F32_PANEL, &matrix, data);
  }
}

static bool wanted_by(const opipe_program *program, uint32_t n, uint32_t slot, uint32_t kind) {
  for (uint32_t i = n; i > 0; --i) {
    if (program->layouts[i - 1].slot == slot && program->layouts[i - 1].kind == kind) {
      return true;
    }
  }
  return false;
}

static opipe_status add_layout(opipe_program *program, const cpu_step *step, uint32_t value,
                               uint32_t kind, opipe_error *err) {
  const opipe_value *v = &program->graph->values[value];
  cpu_layout *layout = &program->layouts[program->n_layouts];
  if (wanted_by(program, program->n_layouts, v->slot, kind)) {
    return OPIPE_OK;
  }
  layout->slot = v->slot;
  layout->kind = kind;
  layout->value = value;
  if (!cpu_layout_bytes(kind, v->shape, v->rank, v->dtype, &layout->n_bytes)) {
    return opipe_fail(err, OPIPE_E_INTERNAL, "node '%.80s': parameter '%.80s' has no layout %u",
                      step->node->name, v->name, kind);
  }
  layout->n_bytes = cpu_align_up(layout->n_bytes, CPU_ALIGN_BYTES);
  if (layout->n_bytes == 0 && kind != CPU_LAYOUT_RAW) {
    layout->n_bytes = CPU_ALIGN_BYTES;
  }
  ++program->n_layouts;
  return OPIPE_OK;
}

static void sort_layouts(opipe_program *program) {
  for (uint32_t i = 1; i < program->n_layouts; ++i) {
    const cpu_layout fresh = program->layouts[i];
    uint32_t k = i;
    while (k > 0 && (program->layouts[k - 1].slot > fresh.slot ||
                     (program->layouts[k - 1].slot == fresh.slot &&
                      program->layouts[k - 1].kind > fresh.kind))) {
      program->layouts[k] = program->layouts[k - 1];
      --k;
    }
    program->layouts[k] = fresh;
  }
}

opipe_status cpu_collect_layouts(opipe_program *program, opipe_error *err) {
  uint64_t room = 0;
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    room += program->steps[s].n_in;
  }
  program->layouts = CPU_POOL_ARRAY(&program->pool, cpu_layout, room);
  if (program->layouts == NULL) {
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the layouts of parameters");
  }
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_step *step = &program->steps[s];
    for (uint32_t i = 0; i < step->n_in; ++i) {
      const uint32_t value = step->in[i].value;
      if (value != OPIPE_NONE && program->graph->values[value].role == OPIPE_VALUE_PARAMETER) {
        CPU_TRY(add_layout(program, step, value, step->in[i].layout, err));
      }
    }
  }
  sort_layouts(program);
  return OPIPE_OK;
}
