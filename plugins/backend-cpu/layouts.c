/* SPDX-License-Identifier: Apache-2.0 */
/* Layouts of parameters: which a program wants, their sizes, and how they are filled.
 *
 * A layout depends on the parameter and on the operators that read it, never on the batch; programs
 * of different shapes share one copy in a set.
 */
#include <stdlib.h>

#include "codes.h"
#include "ops/loop.h"

/* Elements of a convolution's kernel. */
static int64_t taps_of(const int64_t *shape, uint32_t rank) {
  int64_t taps = 1;
  for (uint32_t d = 2; d < rank; ++d)
    taps *= shape[d];
  return taps;
}

bool cpu_layout_bytes(uint32_t kind, const int64_t *shape, uint32_t rank, uint32_t dtype,
                      uint64_t *out_bytes) {
  uint64_t n = 0;
  *out_bytes = 0;
  switch (kind) {
    case CPU_LAYOUT_RAW:
      return true;
    case CPU_LAYOUT_COPY:
    case CPU_LAYOUT_MASTER: /* where no other program asks for one */
      return opipe_tensor_bytes(dtype, shape, rank, out_bytes);
    case CPU_LAYOUT_F32:
      return opipe_shape_elems(shape, rank, &n) && !__builtin_mul_overflow(n, 4ull, out_bytes);
    case CPU_LAYOUT_PANEL:
    case CPU_LAYOUT_PANEL_T:
      return rank == 2 &&
             cpu_pack_bytes(CPU_PACK_F32_PANEL, shape[kind == CPU_LAYOUT_PANEL ? 0 : 1],
                            shape[kind == CPU_LAYOUT_PANEL ? 1 : 0], out_bytes);
    case CPU_LAYOUT_CONV:
      return rank > 2 && cpu_conv_pack_bytes(shape[0], shape[1], taps_of(shape, rank), out_bytes);
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
  if (source->n_bytes == 0)
    return;
  if (kind == CPU_LAYOUT_COPY) {
    memcpy(data, dense, (size_t)source->n_bytes);
  } else if (kind == CPU_LAYOUT_F32) {
    fill_f32(&alone, source, dense, data);
  } else if (kind == CPU_LAYOUT_CONV) {
    cpu_conv_pack(exec, cpu_storage_type(source->dtype), dense, source->shape[0], source->shape[1],
                  taps_of(source->shape, source->rank), data);
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

/* ---- layouts of fp32 and dense tensors ---- */

static bool is_panel(uint32_t kind) {
  return kind == CPU_LAYOUT_PANEL || kind == CPU_LAYOUT_PANEL_T;
}

void cpu_layout_export(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                       const void *data, float *to) {
  uint64_t n = 0;
  if (!is_panel(kind)) {
    if (opipe_shape_elems(shape, rank, &n) && n > 0)
      memcpy(to, data, (size_t)n * sizeof *to);
    return;
  }
  const bool turned = kind == CPU_LAYOUT_PANEL_T;
  const int64_t k = shape[turned ? 1 : 0];
  const int64_t columns = shape[turned ? 0 : 1];
  const cpu_packed packed = {CPU_PACK_F32_PANEL, k, columns, data};
  if (!turned) {
    cpu_unpack(exec, &packed, to, columns);
    return;
  }
  for (int64_t first = 0; first < columns; first += CPU_PANEL) {
    const int64_t left = columns - first;
    cpu_transpose(exec, (const float *)data + first * k, CPU_PANEL, k,
                  left < CPU_PANEL ? left : CPU_PANEL, to + first * k, k);
  }
}

void cpu_layout_import(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                       const float *from, void *data) {
  uint64_t n = 0;
  if (opipe_shape_elems(shape, rank, &n) && n > 0) {
    const opipe_param_source source = {
        .data = from, .shape = shape, .n_bytes = n * 4, .dtype = OPIPE_FLOAT, .rank = rank};
    cpu_layout_fill(exec, kind == CPU_LAYOUT_RAW ? CPU_LAYOUT_COPY : kind, &source, from, data);
  }
}

typedef struct add_job {
  const cpu_exec *exec;
  const float *from;
  float *to;
  int64_t k, n;
} add_job;

/* Panels [begin, end) of a tensor stored [K,N]. */
static void add_panels(void *ctx, int64_t begin, int64_t end) {
  const add_job *job = ctx;
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * CPU_PANEL;
    const int64_t columns = job->n - first < CPU_PANEL ? job->n - first : CPU_PANEL;
    float *to = job->to + first * job->k;
    for (int64_t k = 0; k < job->k; ++k, to += CPU_PANEL) {
      const float *from = job->from + k * job->n + first;
      for (int64_t u = 0; u < columns; ++u)
        to[u] += from[u];
    }
  }
}

/* The same of one stored [N,K], turned a block of depth at a time. */
static void add_panels_turned(void *ctx, int64_t begin, int64_t end) {
  const add_job *job = ctx;
  _Alignas(CPU_ALIGN_BYTES) float block[CPU_PANEL * CPU_PANEL];
  for (int64_t panel = begin; panel < end; ++panel) {
    const int64_t first = panel * CPU_PANEL;
    const int64_t columns = job->n - first < CPU_PANEL ? job->n - first : CPU_PANEL;
    for (int64_t k = 0; k < job->k; k += CPU_PANEL) {
      const cpu_exec alone = {job->exec->kernels, NULL};
      const int64_t depth = job->k - k < CPU_PANEL ? job->k - k : CPU_PANEL;
      float *to = job->to + first * job->k + k * CPU_PANEL;
      cpu_transpose(&alone, job->from + first * job->k + k, job->k, columns, depth, block,
                    CPU_PANEL);
      for (int64_t i = 0; i < depth; ++i) {
        for (int64_t u = 0; u < columns; ++u)
          to[i * CPU_PANEL + u] += block[i * CPU_PANEL + u];
      }
    }
  }
}

void cpu_layout_add(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                    const float *from, void *data) {
  uint64_t n = 0;
  add_job job = {exec, from, data, 0, 0};
  if (!opipe_shape_elems(shape, rank, &n) || n == 0)
    return;
  if (!is_panel(kind)) {
    cpu_add_f32(exec, from, data, (int64_t)n);
    return;
  }
  const bool turned = kind == CPU_LAYOUT_PANEL_T;
  job.k = shape[turned ? 1 : 0];
  job.n = shape[turned ? 0 : 1];
  cpu_parallel(exec, (job.n + CPU_PANEL - 1) / CPU_PANEL, (int64_t)n,
               turned ? add_panels_turned : add_panels, &job);
}

/* ---- what a program wants ---- */

static opipe_status add_layout(opipe_program *program, cpu_layout *layouts, uint32_t *io_n,
                               const cpu_step *step, const cpu_operand *operand, opipe_error *err) {
  const opipe_value *v = &program->graph->values[operand->value];
  const uint32_t kind = operand->layout;
  cpu_layout *layout = &layouts[*io_n];
  layout->slot = v->slot;
  layout->kind = kind;
  layout->value = operand->value;
  if (kind == CPU_LAYOUT_CODES) {
    layout->matrix = step->matrix;
    layout->n_bytes = cpu_align_up(step->matrix->n_bytes, CPU_ALIGN_BYTES);
    ++*io_n;
    return OPIPE_OK;
  }
  if (!cpu_layout_bytes(kind, v->shape, v->rank, v->dtype, &layout->n_bytes)) {
    return opipe_fail(err, OPIPE_E_INTERNAL, "node '%.80s': parameter '%.80s' has no layout %u",
                      step->node->name, v->name, kind);
  }
  layout->n_bytes = cpu_align_up(layout->n_bytes, CPU_ALIGN_BYTES);
  if (layout->n_bytes == 0 && kind != CPU_LAYOUT_RAW)
    layout->n_bytes = CPU_ALIGN_BYTES;
  ++*io_n;
  return OPIPE_OK;
}

static int by_slot(const void *left, const void *right) {
  const cpu_layout *a = left, *b = right;
  if (a->slot != b->slot)
    return a->slot < b->slot ? -1 : 1;
  if (a->kind != b->kind || a->kind != CPU_LAYOUT_CODES)
    return a->kind < b->kind ? -1 : a->kind > b->kind;
  return a->matrix->key < b->matrix->key ? -1 : a->matrix->key > b->matrix->key;
}

/* By slot and kind, each once. */
static void sort_layouts(cpu_layout *layouts, uint32_t *io_n) {
  uint32_t n = 0;
  if (*io_n > 1)
    qsort(layouts, *io_n, sizeof layouts[0], by_slot);
  for (uint32_t i = 0; i < *io_n; ++i) {
    if (n == 0 || by_slot(&layouts[n - 1], &layouts[i]) != 0)
      layouts[n++] = layouts[i];
  }
  *io_n = n;
}

/* In an owned set nothing lies in place, of fp32 parameters there is one dense form, and of panels
 * one: kernels multiply by them and by their transpose. What can be read in either form is read in
 * the master's, whichever programs of the set bring it: a tied table (hosts know it from 1.2 on).
 */
static void own_layout(const opipe_program *program, const cpu_step *step, uint32_t i) {
  cpu_operand *operand = &step->in[i];
  const bool f32 = program->graph->values[operand->value].dtype == OPIPE_FLOAT;
  const bool any = f32 && i < 32 && (step->panels >> i & 1u) != 0;
  if ((program->flags & OPIPE_COMPILE_OWNED) == 0)
    return;
  if (any && operand->layout < CPU_LAYOUT_PANEL && program->device->host->abi_minor >= 2)
    operand->layout = CPU_LAYOUT_MASTER;
  else if (operand->layout == CPU_LAYOUT_RAW || (f32 && operand->layout == CPU_LAYOUT_F32))
    operand->layout = CPU_LAYOUT_COPY;
  else if (operand->layout == CPU_LAYOUT_PANEL_T)
    operand->layout = CPU_LAYOUT_PANEL;
}

/* Layout of a parameter's accumulator: panels where a product adds to it, or the program reads the
 * parameter so. It is the master's in fact: this foretells it. */
static uint32_t accumulator_kind(const opipe_program *program, uint32_t slot) {
  uint32_t kind = CPU_LAYOUT_COPY;
  for (uint32_t i = 0; i < program->n_layouts; ++i) {
    const cpu_layout *layout = &program->layouts[i];
    if (layout->slot == slot && layout->kind > kind && layout->kind != CPU_LAYOUT_MASTER)
      kind = layout->kind;
  }
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_operand *out = program->steps[s].out;
    for (uint32_t i = 0; i < program->steps[s].n_out; ++i) {
      const bool is_it = out[i].value != OPIPE_NONE &&
                         program->graph->values[out[i].value].role == OPIPE_VALUE_GRADIENT &&
                         program->graph->values[out[i].value].slot == slot;
      kind = is_it && out[i].layout == CPU_LAYOUT_PANEL && kind < CPU_LAYOUT_PANEL
                 ? (uint32_t)CPU_LAYOUT_PANEL
                 : kind;
    }
  }
  return kind;
}

/* An operator that can read panels does, where the program has that copy anyway: a tied table. */
static void share_panels(opipe_program *program, cpu_step *step) {
  for (uint32_t i = 0; i < step->n_in && i < 32; ++i) {
    const uint32_t v = step->in[i].value;
    if ((step->panels >> i & 1u) == 0 || v == OPIPE_NONE ||
        program->graph->values[v].role != OPIPE_VALUE_PARAMETER)
      continue;
    for (uint32_t s = 0; s < program->n_steps; ++s) {
      const cpu_step *other = &program->steps[s];
      for (uint32_t k = 0; k < other->n_in; ++k) {
        const uint32_t o = other->in[k].value;
        if (o != OPIPE_NONE && is_panel(other->in[k].layout) &&
            program->graph->values[o].role == OPIPE_VALUE_PARAMETER &&
            program->graph->values[o].slot == program->graph->values[v].slot)
          step->in[i].layout = CPU_LAYOUT_PANEL;
      }
    }
  }
}

static opipe_status collect_gradients(opipe_program *program, opipe_error *err) {
  uint64_t room = 0;
  for (uint32_t v = 0; v < program->graph->n_values; ++v)
    room += program->graph->values[v].role == OPIPE_VALUE_GRADIENT;
  program->gradients = CPU_POOL_ARRAY(&program->pool, cpu_layout, room + 1);
  if (program->gradients == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the layouts of gradients");
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    cpu_step *step = &program->steps[s];
    for (uint32_t i = 0; i < step->n_out; ++i) {
      const uint32_t v = step->out[i].value;
      if (v != OPIPE_NONE && program->graph->values[v].role == OPIPE_VALUE_GRADIENT) {
        step->out[i].layout = accumulator_kind(program, program->graph->values[v].slot);
        CPU_TRY(add_layout(program, program->gradients, &program->n_gradients, step, &step->out[i],
                           err));
      }
    }
  }
  sort_layouts(program->gradients, &program->n_gradients);
  return OPIPE_OK;
}

opipe_status cpu_collect_layouts(opipe_program *program, opipe_error *err) {
  uint64_t room = 0;
  for (uint32_t s = 0; s < program->n_steps; ++s)
    room += program->steps[s].n_in;
  program->layouts = CPU_POOL_ARRAY(&program->pool, cpu_layout, room);
  if (program->layouts == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the layouts of parameters");
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    if ((program->flags & OPIPE_COMPILE_OWNED) != 0 && program->steps[s].panels != 0)
      share_panels(program, &program->steps[s]);
  }
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_step *step = &program->steps[s];
    for (uint32_t i = 0; i < step->n_in; ++i) {
      const uint32_t value = step->in[i].value;
      if (value != OPIPE_NONE && program->graph->values[value].role == OPIPE_VALUE_PARAMETER) {
        own_layout(program, step, i);
        CPU_TRY(
            add_layout(program, program->layouts, &program->n_layouts, step, &step->in[i], err));
      }
    }
  }
  sort_layouts(program->layouts, &program->n_layouts);
  return collect_gradients(program, err);
}
