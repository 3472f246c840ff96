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

cpu_pack_format cpu_layout_format(uint32_t kind, uint32_t dtype) {
  if (kind != CPU_LAYOUT_HALF && kind != CPU_LAYOUT_HALF_T)
    return CPU_PACK_F32_PANEL;
  return dtype == OPIPE_FLOAT16 ? CPU_PACK_F16_PANEL : CPU_PACK_BF16_PANEL;
}

bool cpu_layout_matrix_bytes(uint32_t kind, uint32_t dtype, int64_t k, int64_t n,
                             uint64_t *out_bytes) {
  const cpu_pack_format format = cpu_layout_format(kind, dtype);
  return (format == CPU_PACK_F32_PANEL || cpu_is_half(dtype)) &&
         cpu_pack_bytes(format, k, n, out_bytes);
}

/* Axes before the last two. */
static uint64_t matrices_of(const int64_t *shape, uint32_t rank) {
  uint64_t n = 0;
  return rank >= 2 && opipe_shape_elems(shape, rank - 2, &n) ? n : 0;
}

static bool panel_bytes(uint32_t kind, const int64_t *shape, uint32_t rank, uint32_t dtype,
                        uint64_t *out_bytes) {
  const bool turned = cpu_layout_is_turned(kind);
  return rank >= 2 &&
         cpu_layout_matrix_bytes(kind, dtype, shape[rank - (turned ? 1 : 2)],
                                 shape[rank - (turned ? 2 : 1)], out_bytes) &&
         !__builtin_mul_overflow(*out_bytes, matrices_of(shape, rank), out_bytes);
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
    case CPU_LAYOUT_HALF:
    case CPU_LAYOUT_HALF_T:
      return panel_bytes(kind, shape, rank, dtype, out_bytes);
    case CPU_LAYOUT_CONV:
      return rank > 2 && cpu_conv_pack_bytes(shape[0], shape[1], taps_of(shape, rank), out_bytes);
    default:
      return false;
  }
}

enum { PIECE_BYTES = 8 << 20 }; /* of a source, between two times that pages are given back */

static void drop(const opipe_device *device, const void *data, uint64_t n_bytes) {
  if (device != NULL)
    cpu_drop_pages(device, data, n_bytes);
}

/* Converts element by element through aligned scratch, since a source may lie at any address. */
static void fill_f32(const opipe_device *device, const cpu_exec *exec,
                     const opipe_param_source *source, const void *dense, float *out) {
  enum { CHUNK = 1024 };
  uint64_t n = 0;
  const uint32_t size = cpu_dtype_bytes(source->dtype);
  _Alignas(CPU_ALIGN_BYTES) unsigned char chunk[CHUNK * 4];
  (void)opipe_shape_elems(source->shape, source->rank, &n);
  for (uint64_t i = 0; i < n; i += CHUNK) {
    const uint64_t count = n - i < CHUNK ? n - i : CHUNK;
    memcpy(chunk, (const char *)dense + i * size, (size_t)(count * size));
    cpu_convert(exec, cpu_storage_type(source->dtype), chunk, CPU_F32, out + i, (int64_t)count);
    if ((i + count) % (PIECE_BYTES / 4) == 0 || i + count == n) {
      const uint64_t first = i / (PIECE_BYTES / 4) * (PIECE_BYTES / 4);
      drop(device, (const char *)dense + first * size, (i + count - first) * size);
    }
  }
}

static void fill_copy(const opipe_device *device, const void *dense, uint64_t n_bytes, void *data) {
  for (uint64_t at = 0; at < n_bytes; at += PIECE_BYTES) {
    const uint64_t count = n_bytes - at < PIECE_BYTES ? n_bytes - at : PIECE_BYTES;
    memcpy((char *)data + at, (const char *)dense + at, (size_t)count);
    drop(device, (const char *)dense + at, count);
  }
}

/* One matrix: some rows of the stored form at a time, which are rows of all panels, or whole panels
 * where it is stored [N,K]. */
static void fill_panels(const opipe_device *device, const cpu_exec *exec, cpu_pack_format format,
                        const cpu_pack_source *whole, char *data) {
  const int64_t size = whole->dtype == CPU_F32 ? 4 : 2;
  const int64_t out_size = format == CPU_PACK_F32_PANEL ? 4 : 2;
  const bool turned = whole->n_stride != 1;
  const int64_t rows = turned ? whole->n : whole->k;
  const int64_t row_bytes = (turned ? whole->k : whole->n) * size;
  const int64_t fit = PIECE_BYTES / (row_bytes > 0 ? row_bytes : 1);
  const int64_t step = fit < CPU_PANEL ? CPU_PANEL : fit / CPU_PANEL * CPU_PANEL;
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = rows - row < step ? rows - row : step;
    cpu_pack_source piece = *whole;
    piece.data = (const char *)whole->data + row * row_bytes;
    piece.depth = whole->k;
    *(turned ? &piece.n : &piece.k) = count;
    cpu_pack(exec, format, &piece, data + row * (turned ? whole->k : CPU_PANEL) * out_size);
    drop(device, piece.data, (uint64_t)(count * row_bytes));
  }
}

static void fill_matrices(const opipe_device *device, const cpu_exec *exec, uint32_t kind,
                          const opipe_param_source *source, const void *dense, char *data) {
  const bool turned = cpu_layout_is_turned(kind);
  const int64_t *last = source->shape + source->rank - 2;
  const uint64_t count = matrices_of(source->shape, source->rank);
  cpu_pack_source matrix = {.data = dense,
                            .dtype = cpu_storage_type(source->dtype),
                            .k = last[turned ? 1 : 0],
                            .n = last[turned ? 0 : 1],
                            .k_stride = turned ? 1 : last[1],
                            .n_stride = turned ? last[1] : 1};
  uint64_t n_bytes = 0;
  (void)cpu_layout_matrix_bytes(kind, source->dtype, matrix.k, matrix.n, &n_bytes);
  for (uint64_t i = 0; i < count; ++i) {
    matrix.data = (const char *)dense + i * (source->n_bytes / count);
    fill_panels(device, exec, cpu_layout_format(kind, source->dtype), &matrix, data + i * n_bytes);
  }
}

void cpu_layout_fill(const opipe_device *device, const cpu_exec *exec, uint32_t kind,
                     const opipe_param_source *source, const void *dense, void *data) {
  const cpu_exec alone = cpu_alone(exec);
  if (source->n_bytes == 0)
    return;
  if (kind == CPU_LAYOUT_COPY) {
    fill_copy(device, dense, source->n_bytes, data);
  } else if (kind == CPU_LAYOUT_F32) {
    fill_f32(device, &alone, source, dense, data);
  } else if (kind == CPU_LAYOUT_CONV) {
    cpu_conv_pack(exec, cpu_storage_type(source->dtype), dense, source->shape[0], source->shape[1],
                  taps_of(source->shape, source->rank), data);
    drop(device, dense, source->n_bytes);
  } else if (cpu_layout_is_panel(kind)) {
    fill_matrices(device, exec, kind, source, dense, data);
  }
}

/* ---- layouts of fp32 and dense tensors ---- */

void cpu_layout_export(const cpu_exec *exec, uint32_t kind, const int64_t *shape, uint32_t rank,
                       const void *data, float *to) {
  uint64_t n = 0;
  if (!cpu_layout_is_panel(kind)) {
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
    cpu_layout_fill(NULL, exec, kind == CPU_LAYOUT_RAW ? CPU_LAYOUT_COPY : kind, &source, from,
                    data);
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
      const cpu_exec alone = cpu_alone(job->exec);
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
  if (!cpu_layout_is_panel(kind)) {
    cpu_add_f32(exec, from, data, (int64_t)n);
    return;
  }
  const bool turned = kind == CPU_LAYOUT_PANEL_T;
  job.k = shape[turned ? 1 : 0];
  job.n = shape[turned ? 0 : 1];
  cpu_parallel(exec, (job.n + CPU_PANEL - 1) / CPU_PANEL, (int64_t)n,
               turned ? add_panels_turned : add_panels, &job);
}

/* ---- layouts that a program wants ---- */

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
 * one: kernels multiply by them and by their transpose. A parameter that can be read in either form
 * is read in the master's, whichever programs of the set bring it: a tied table (hosts know it from
 * 1.2 on).
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

/* An operator that can read panels does, where the program has that copy anyway: a tied table. In
 * an owned set it is made from panels that are not turned (own_layout). */
static void share_panels(opipe_program *program, cpu_step *step) {
  const bool owned = (program->flags & OPIPE_COMPILE_OWNED) != 0;
  for (uint32_t i = 0; i < step->n_in && i < 32; ++i) {
    const uint32_t v = step->in[i].value;
    if ((step->panels >> i & 1u) == 0 || v == OPIPE_NONE ||
        program->graph->values[v].role != OPIPE_VALUE_PARAMETER)
      continue;
    for (uint32_t s = 0; s < program->n_steps; ++s) {
      const cpu_step *other = &program->steps[s];
      for (uint32_t k = 0; k < other->n_in; ++k) {
        const uint32_t o = other->in[k].value;
        if (o != OPIPE_NONE && cpu_layout_is_panel(other->in[k].layout) &&
            program->graph->values[o].role == OPIPE_VALUE_PARAMETER &&
            program->graph->values[o].slot == program->graph->values[v].slot)
          step->in[i].layout = owned ? CPU_LAYOUT_PANEL : other->in[k].layout;
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
    if (program->steps[s].panels != 0)
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
