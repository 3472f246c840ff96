/* SPDX-License-Identifier: Apache-2.0 */
/* See codes.h. */
#include "codes.h"

#include "params.h"

/* ---- from nodes to matrices ---- */

static bool is_nbits(const opipe_node *node) {
  return strcmp(node->op, "DequantizeNBits") == 0 && node->domain != NULL &&
         strcmp(node->domain, "opipe") == 0;
}

bool cpu_unpacks(const opipe_node *node) {
  const bool standard =
      node->domain == NULL || node->domain[0] == '\0' || strcmp(node->domain, "ai.onnx") == 0;
  return (standard && strcmp(node->op, "DequantizeLinear") == 0) || is_nbits(node);
}

/* Input `i` of the node; false when it is neither parameter nor constant, nor may be absent. */
static bool part_of(const opipe_graph *graph, const opipe_node *node, uint32_t i,
                    cpu_codes_part *out) {
  memset(out, 0, sizeof *out);
  out->slot = OPIPE_NONE;
  if (i >= node->n_in || node->in[i] == OPIPE_NONE)
    return i == 2;
  const opipe_value *value = &graph->values[node->in[i]];
  out->dtype = value->dtype;
  out->n_bytes = value->n_bytes;
  if (value->role == OPIPE_VALUE_PARAMETER)
    out->slot = value->slot;
  else if (value->role == OPIPE_VALUE_CONSTANT)
    out->source.data = value->data;
  else
    return false;
  const bool floats = cpu_is_float(value->dtype);
  out->source.bits = floats ? 0 : opipe_dtype_bits(value->dtype);
  out->source.is_signed = opipe_dtype_row_of(value->dtype)->elements == OPIPE_ELEM_INT;
  out->source.type = cpu_storage_type(value->dtype);
  return value->n_bytes > 0 && value->dtype != OPIPE_DOUBLE;
}

static bool is_few_bits(uint32_t bits) {
  return bits == 2 || bits == 4 || bits == 8;
}

static void set_strides(cpu_codes_part *part, int64_t i_stride, int64_t j_stride) {
  part->source.i_stride = i_stride;
  part->source.j_stride = j_stride;
}

/* Rows of whole bytes: codes [N, blocks * block], integer zeros [N, blocks] packed. */
static bool nbits_form(const opipe_node *node, uint32_t k_axis, cpu_matrix *m) {
  const int64_t bits = opipe_attr_int(node, "bits", 4);
  const int64_t block = opipe_attr_int(node, "block_size", 32);
  if (k_axis != 1 || block <= 0 || !is_few_bits((uint32_t)bits))
    return false;
  const int64_t blocks = (m->form.k + block - 1) / block;
  m->form.block = block;
  m->form.bits = (uint32_t)bits;
  m->form.zero = 1 << (bits - 1);
  m->codes.source.bits = m->form.bits;
  set_strides(&m->codes, 1, blocks * block);
  set_strides(&m->scales, 1, blocks);
  if (m->zeros.source.bits == 0) {
    set_strides(&m->zeros, 1, blocks);
  } else {
    m->zeros.source.bits = m->form.bits;
    set_strides(&m->zeros, 1, (blocks * bits + 7) / 8 * 8 / bits);
  }
  return true;
}

/* One scale, one for each column, or one for blocks along K. */
static bool linear_form(const opipe_graph *graph, const opipe_node *node, uint32_t k_axis,
                        cpu_matrix *m) {
  const opipe_value *scale = &graph->values[node->in[1]];
  const int64_t block = opipe_attr_int(node, "block_size", 0);
  const bool one = cpu_elems(scale) == 1;
  const uint32_t axis = (uint32_t)opipe_attr_int(node, "axis", 0);
  m->form.bits = m->codes.source.bits;
  m->form.zero = m->codes.source.is_signed ? 1 << (m->form.bits - 1) : 0;
  m->form.block = m->form.k;
  if (!is_few_bits(m->form.bits))
    return false;
  set_strides(&m->codes, k_axis == 0 ? m->form.n : 1, k_axis == 0 ? 1 : m->form.k);
  if (one || (block == 0 && axis != k_axis)) {
    set_strides(&m->scales, 0, one ? 0 : 1);
  } else if (block != 0 && axis == k_axis) {
    const int64_t blocks = (m->form.k + block - 1) / block;
    m->form.block = block;
    set_strides(&m->scales, k_axis == 0 ? m->form.n : 1, k_axis == 0 ? 1 : blocks);
  } else {
    return false;
  }
  set_strides(&m->zeros, m->scales.source.i_stride, m->scales.source.j_stride);
  return true;
}

/* FNV-1a */
static uint64_t hash_bytes(uint64_t hash, const void *data, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i)
    hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(1099511628211);
  return hash;
}

static uint64_t hash_number(uint64_t hash, int64_t number) {
  return hash_bytes(hash, &number, sizeof number);
}

static uint64_t hash_part(uint64_t hash, const cpu_codes_part *part) {
  const cpu_code_source *s = &part->source;
  const int64_t numbers[] = {part->slot,       part->dtype,  (int64_t)part->n_bytes,
                             (int64_t)s->bits, s->is_signed, s->type,
                             s->i_stride,      s->j_stride};
  for (uint32_t i = 0; i < CPU_COUNT_OF(numbers); ++i)
    hash = hash_number(hash, numbers[i]);
  if (s->i_inner != 0)
    hash = hash_number(hash_number(hash, s->i_inner), s->i_outer);
  return s->data != NULL ? hash_bytes(hash, s->data, part->n_bytes) : hash;
}

/* Behind the formats of one parameter, and never a master's. */
static uint64_t key_of(const cpu_matrix *m) {
  const cpu_codes *f = &m->form;
  const int64_t numbers[] = {f->k, f->n, f->block, f->bits, f->scale, f->zeros, f->zero};
  uint64_t hash = UINT64_C(14695981039346656037);
  for (uint32_t i = 0; i < CPU_COUNT_OF(numbers); ++i)
    hash = hash_number(hash, numbers[i]);
  hash = hash_part(hash_part(hash_part(hash, &m->codes), &m->scales), &m->zeros);
  return hash << 33 | OPIPE_LAYOUT_DERIVED;
}

bool cpu_matrix_of(const opipe_graph *graph, const opipe_node *node, uint32_t k_axis,
                   cpu_matrix *out) {
  if (!cpu_unpacks(node) || node->n_in < 2 || node->n_out != 1 || node->out[0] == OPIPE_NONE)
    return false;
  const opipe_value *w = &graph->values[node->out[0]];
  memset(out, 0, sizeof *out);
  if (w->rank != 2 || !part_of(graph, node, 0, &out->codes) ||
      !part_of(graph, node, 1, &out->scales) || !part_of(graph, node, 2, &out->zeros) ||
      out->codes.slot == OPIPE_NONE || out->scales.source.bits != 0)
    return false;
  out->form.k = w->shape[k_axis];
  out->form.n = w->shape[1 - k_axis];
  out->form.scale = out->scales.source.type;
  if (!(is_nbits(node) ? nbits_form(node, k_axis, out) : linear_form(graph, node, k_axis, out)))
    return false;
  out->form.zeros = out->zeros.n_bytes == 0       ? CPU_ZEROS_ONE
                    : out->zeros.source.bits == 0 ? CPU_ZEROS_FLOATS
                                                  : CPU_ZEROS_BYTES;
  if (out->form.zeros != CPU_ZEROS_ONE)
    out->form.zero = 0;
  out->key = key_of(out);
  out->int8 = opipe_attr_int(node, "accuracy_level", 0) == 4;
  return cpu_codes_bytes(&out->form, &out->n_bytes) && out->n_bytes > 0;
}

bool cpu_matrix_of_bytes(const cpu_codes *form, const opipe_value *value,
                         const cpu_code_source *source, cpu_matrix *out) {
  memset(out, 0, sizeof *out);
  out->form = *form;
  out->codes = (cpu_codes_part){value->slot, value->dtype, value->n_bytes, *source};
  out->scales.slot = OPIPE_NONE;
  out->zeros.slot = OPIPE_NONE;
  out->key = key_of(out);
  return cpu_codes_bytes(&out->form, &out->n_bytes) && out->n_bytes > 0;
}

/* ---- copies in a set ---- */

static cpu_matrix_copy *find_copy(const opipe_params *params, uint64_t key) {
  cpu_matrix_copy *copy = params->matrices;
  while (copy != NULL && copy->matrix.key != key)
    copy = copy->next;
  return copy;
}

const void *cpu_params_matrix(const opipe_params *params, const cpu_matrix *matrix) {
  const cpu_matrix_copy *copy = find_copy(params, matrix->key);
  return copy == NULL ? NULL : copy->buffer.data;
}

/* The set must hold what the program was compiled for. */
static opipe_status check_part(const opipe_params *params, const cpu_codes_part *part,
                               opipe_error *err) {
  if (part->slot == OPIPE_NONE)
    return OPIPE_OK;
  if (part->slot >= params->n)
    return opipe_fail(err, OPIPE_E_INVALID, "slot %u of a set of %u", part->slot, params->n);
  const opipe_param_source *source = &params->states[part->slot].source;
  return source->dtype == part->dtype && source->n_bytes == part->n_bytes
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_INVALID, "the set holds '%.80s' of another type or size",
                          source->name);
}

static opipe_status keep_constant(opipe_params *params, cpu_codes_part *part, opipe_error *err) {
  if (part->source.data == NULL)
    return OPIPE_OK;
  void *kept = cpu_pool_array(&params->pool, part->n_bytes, 1);
  if (kept == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for the constants of a packed matrix");
  memcpy(kept, part->source.data, (size_t)part->n_bytes);
  part->source.data = kept;
  return OPIPE_OK;
}

static cpu_code_source source_of(const opipe_params *params, const cpu_codes_part *part) {
  cpu_code_source source = part->source;
  if (part->slot != OPIPE_NONE)
    source.data = cpu_params_dense(&params->states[part->slot]);
  return source;
}

enum { PIECE_BITS = 8 * (8 << 20) }; /* of the codes, between two times that pages are given back */

/* Codes of columns that lie one behind the other. */
static void drop_columns(const opipe_device *device, const cpu_matrix *m, const void *codes,
                         int64_t column, int64_t columns) {
  const uint64_t begin = (uint64_t)(column * m->codes.source.j_stride) * m->form.bits / 8;
  const uint64_t n_bytes = (uint64_t)(columns * m->codes.source.j_stride) * m->form.bits / 8;
  if (begin < m->codes.n_bytes) {
    cpu_drop_pages(device, (const char *)codes + begin,
                   n_bytes < m->codes.n_bytes - begin ? n_bytes : m->codes.n_bytes - begin);
  }
}

static void fill(opipe_params *params, const cpu_matrix_copy *copy) {
  const cpu_matrix *m = &copy->matrix;
  const cpu_codes_source source = {.codes = source_of(params, &m->codes),
                                   .scales = source_of(params, &m->scales),
                                   .zeros = source_of(params, &m->zeros)};
  const int64_t panels = cpu_codes_panels(&m->form);
  const int64_t column_bits = m->codes.source.j_stride * (int64_t)m->form.bits;
  const bool columns = m->codes.source.i_stride == 1; /* one behind the other */
  const int64_t fit = PIECE_BITS / (column_bits > 0 ? column_bits * CPU_PANEL : 1);
  const int64_t step = !columns ? panels : fit > 0 ? fit : 1;
  const cpu_exec exec = cpu_take_exec(params->device);
  for (int64_t first = 0; first < panels; first += step) {
    const int64_t count = panels - first < step ? panels - first : step;
    cpu_codes_pack(&exec, &m->form, &source, first, count, copy->buffer.data);
    if (columns)
      drop_columns(params->device, m, source.codes.data, first * CPU_PANEL, count * CPU_PANEL);
  }
  cpu_give_exec(params->device, &exec);
  cpu_drop_pages(params->device, source.codes.data, m->codes.n_bytes);
  cpu_drop_pages(params->device, source.scales.data, m->scales.n_bytes);
  cpu_drop_pages(params->device, source.zeros.data, m->zeros.n_bytes);
}

/* Room for a copy, filled by the caller and then put into the list. */
static opipe_status new_copy(opipe_params *params, const cpu_matrix *matrix,
                             cpu_matrix_copy **out_copy, opipe_error *err) {
  cpu_matrix_copy *copy = CPU_POOL_ARRAY(&params->pool, cpu_matrix_copy, 1);
  if (copy == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for a packed matrix");
  copy->matrix = *matrix;
  CPU_TRY(keep_constant(params, &copy->matrix.scales, err));
  CPU_TRY(keep_constant(params, &copy->matrix.zeros, err));
  copy->buffer.n_bytes = matrix->n_bytes;
  copy->buffer.device = params->device;
  copy->buffer.kind = OPIPE_BUFFER_PARAMS;
  CPU_TRY(opipe_host_alloc(params->device->host, &params->device->meter, OPIPE_BUFFER_PARAMS,
                           &copy->buffer.n_bytes, CPU_ALIGN_BYTES, &copy->buffer.data, err));
  copy->next = params->matrices;
  params->matrices = copy;
  *out_copy = copy;
  return OPIPE_OK;
}

opipe_status cpu_params_pack(opipe_params *params, const cpu_matrix *matrix, opipe_error *err) {
  cpu_matrix_copy *copy = NULL;
  CPU_TRY(check_part(params, &matrix->codes, err));
  CPU_TRY(check_part(params, &matrix->scales, err));
  CPU_TRY(check_part(params, &matrix->zeros, err));
  if (find_copy(params, matrix->key) != NULL)
    return OPIPE_OK;
  CPU_TRY(new_copy(params, matrix, &copy, err));
  cpu_prefer_huge_pages(copy->buffer.data, copy->buffer.n_bytes);
  fill(params, copy);
  return OPIPE_OK;
}

opipe_status cpu_params_clone_packed(opipe_params *params, const opipe_params *from,
                                     opipe_error *err) {
  for (const cpu_matrix_copy *c = from->matrices; c != NULL; c = c->next) {
    cpu_matrix_copy *copy = NULL;
    CPU_TRY(new_copy(params, &c->matrix, &copy, err));
    memcpy(copy->buffer.data, c->buffer.data, (size_t)c->matrix.n_bytes);
  }
  return OPIPE_OK;
}

static bool is_dirty(const opipe_params *params, const cpu_codes_part *part) {
  return part->slot != OPIPE_NONE && params->states[part->slot].dirty;
}

void cpu_params_repack(opipe_params *params) {
  for (const cpu_matrix_copy *copy = params->matrices; copy != NULL; copy = copy->next) {
    const cpu_matrix *m = &copy->matrix;
    if (is_dirty(params, &m->codes) || is_dirty(params, &m->scales) || is_dirty(params, &m->zeros))
      fill(params, copy);
  }
}

void cpu_params_free_packed(opipe_params *params) {
  for (cpu_matrix_copy *copy = params->matrices; copy != NULL; copy = copy->next) {
    opipe_host_free(params->device->host, &params->device->meter, OPIPE_BUFFER_PARAMS,
                    copy->buffer.data, copy->buffer.n_bytes, CPU_ALIGN_BYTES);
  }
  params->matrices = NULL;
}
