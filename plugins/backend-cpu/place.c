/* SPDX-License-Identifier: Apache-2.0 */
/* Where values lie.
 *
 * Values are gathered into groups that share bytes: a view with what it views, an element-wise
 * result with the input that it may overwrite. A group lies in a boundary, a parameter, a constant,
 * or in the arena: there each group lives from the step that makes it to the last that touches it
 * (arena.c).
 *
 * Rules: only groups of the arena are overwritten. A group whose bytes are also an output's lies in
 * that output's region, and nothing overwrites it.
 */
#include "ops/op.h"

typedef struct placer {
  opipe_program *program;
  const opipe_graph *graph;
  uint32_t *group;  /* [n_values] union-find towards the value that stands for the group */
  uint32_t *last;   /* [n_values] of a group's head: last step that touches it */
  uint32_t *first;  /* [n_values] */
  uint32_t *output; /* [n_values] of a head: output whose region holds it, OPIPE_NONE */
} placer;

static uint32_t head_of(placer *q, uint32_t v) {
  while (q->group[v] != v) {
    q->group[v] = q->group[q->group[v]];
    v = q->group[v];
  }
  return v;
}

static bool in_arena(placer *q, uint32_t head) {
  return q->graph->values[head].role == OPIPE_VALUE_TEMP && q->output[head] == OPIPE_NONE;
}

/* A copy of bytes, for views that need a place of their own. */
static opipe_status copy_kernel(const cpu_call *call, opipe_error *err) {
  (void)err;
  if (call->out[0].n_bytes > 0)
    memcpy(call->out[0].data, call->in[0].data, (size_t)call->out[0].n_bytes);
  return OPIPE_OK;
}

/* Joins views with what they view; those that cannot be joined become copies. */
static void join_views(placer *q) {
  opipe_program *program = q->program;
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    cpu_step *step = &program->steps[s];
    if (!step->is_view)
      continue;
    const uint32_t out = step->out[0].value;
    const uint32_t head = head_of(q, step->in[0].value);
    if (q->graph->values[head].role == OPIPE_VALUE_PARAMETER)
      step->in[0].layout = CPU_LAYOUT_COPY;
    if (q->graph->values[out].role == OPIPE_VALUE_TEMP) {
      q->group[out] = head;
    } else if (in_arena(q, head)) {
      q->output[head] = out;
      q->group[out] = head;
    } else {
      step->is_view = false;
      step->run = copy_kernel;
      step->in[0].layout = CPU_LAYOUT_RAW;
    }
  }
}

static void mark_lives(placer *q) {
  const opipe_program *program = q->program;
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_step *step = &program->steps[s];
    for (uint32_t i = 0; i < step->n_out + step->n_in; ++i) {
      const uint32_t v = i < step->n_out ? step->out[i].value : step->in[i - step->n_out].value;
      if (v == OPIPE_NONE)
        continue;
      const uint32_t head = head_of(q, v);
      q->first[head] = q->first[head] < s ? q->first[head] : s;
      q->last[head] = s;
    }
  }
}

/* True when no operand of the step but input i lies in the group. */
static bool only_operand(placer *q, const cpu_step *step, uint32_t i, uint32_t head) {
  for (uint32_t k = 0; k < step->n_in; ++k) {
    if (k != i && step->in[k].value != OPIPE_NONE && head_of(q, step->in[k].value) == head)
      return false;
  }
  return true;
}

/* Lets results overwrite an input that nobody reads afterwards. */
static void join_overwrites(placer *q) {
  opipe_program *program = q->program;
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const cpu_step *step = &program->steps[s];
    if (step->inplace == 0 || step->is_view)
      continue;
    const uint32_t out = head_of(q, step->out[0].value);
    const bool to_output = !in_arena(q, out);
    for (uint32_t i = 0; i < step->n_in && i < 32; ++i) {
      if ((step->inplace >> i & 1u) == 0 || step->in[i].value == OPIPE_NONE)
        continue;
      const uint32_t head = head_of(q, step->in[i].value);
      if (!in_arena(q, head) || q->last[head] != s || head == out ||
          q->graph->values[head].n_bytes != q->graph->values[out].n_bytes ||
          !only_operand(q, step, i, head))
        continue;
      if (to_output)
        q->output[head] = q->output[out] != OPIPE_NONE ? q->output[out] : out;
      q->group[out] = head;
      q->last[head] = q->last[out];
      break;
    }
  }
}

static opipe_status constant_storage(opipe_program *program, const opipe_value *value,
                                     cpu_storage *storage, opipe_error *err) {
  const uint32_t size = cpu_dtype_bytes(value->dtype);
  storage->kind = CPU_PLACE_CONSTANT;
  storage->data = value->data != NULL ? value->data : value; /* no bytes: any address */
  if (size > 1 && (uintptr_t)value->data % size != 0) {
    void *copy = cpu_pool_array(&program->pool, value->n_bytes, 1);
    if (copy == NULL) {
      return opipe_fail(err, OPIPE_E_NOMEM, "constant '%.80s': no memory for %llu bytes",
                        value->name, (unsigned long long)value->n_bytes);
    }
    memcpy(copy, value->data, (size_t)value->n_bytes);
    storage->data = copy;
  }
  return OPIPE_OK;
}

/* A storage for every group that a step touches. */
static opipe_status make_storages(placer *q, opipe_error *err) {
  opipe_program *program = q->program;
  for (uint32_t v = 0; v < q->graph->n_values; ++v) {
    const uint32_t head = head_of(q, v);
    if (q->first[head] == OPIPE_NONE)
      continue;
    if (program->storage_of[head] == OPIPE_NONE) {
      const opipe_value *value = &q->graph->values[head];
      cpu_storage *storage = &program->storages[program->n_storages];
      program->storage_of[head] = program->n_storages++;
      storage->n_bytes = value->n_bytes;
      storage->first = q->first[head];
      storage->last = q->last[head];
      storage->slot = value->slot;
      switch (value->role) {
        case OPIPE_VALUE_CONSTANT:
          CPU_TRY(constant_storage(program, value, storage, err));
          break;
        case OPIPE_VALUE_PARAMETER:
          storage->kind = CPU_PLACE_PARAM;
          break;
        case OPIPE_VALUE_SCALAR:
          storage->kind = CPU_PLACE_SCALAR;
          break;
        case OPIPE_VALUE_GRADIENT:
          storage->kind = CPU_PLACE_GRADIENT;
          break;
        case OPIPE_VALUE_TEMP:
          storage->kind = in_arena(q, head) ? CPU_PLACE_ARENA : CPU_PLACE_BOUNDARY;
          storage->slot = in_arena(q, head) ? 0 : q->graph->values[q->output[head]].slot;
          break;
        default:
          storage->kind = CPU_PLACE_BOUNDARY;
          break;
      }
    }
    program->storage_of[v] = program->storage_of[head];
  }
  return OPIPE_OK;
}

opipe_status cpu_place(opipe_program *program, opipe_error *err) {
  const uint32_t n = program->graph->n_values;
  cpu_pool *pool = &program->pool;
  placer q = {.program = program, .graph = program->graph};
  q.group = CPU_POOL_ARRAY(pool, uint32_t, n);
  q.last = CPU_POOL_ARRAY(pool, uint32_t, n);
  q.first = CPU_POOL_ARRAY(pool, uint32_t, n);
  q.output = CPU_POOL_ARRAY(pool, uint32_t, n);
  program->storage_of = CPU_POOL_ARRAY(pool, uint32_t, n);
  program->storages = CPU_POOL_ARRAY(pool, cpu_storage, n);
  if (q.group == NULL || q.last == NULL || q.first == NULL || q.output == NULL ||
      program->storage_of == NULL || program->storages == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory to place %u values", n);
  for (uint32_t v = 0; v < n; ++v) {
    q.group[v] = v;
    q.first[v] = OPIPE_NONE;
    q.output[v] = OPIPE_NONE;
    program->storage_of[v] = OPIPE_NONE;
  }
  join_views(&q);
  mark_lives(&q);
  join_overwrites(&q);
  CPU_TRY(make_storages(&q, err));
  CPU_TRY(cpu_place_arena(program, err));
  for (uint32_t s = 0; s < program->n_steps; ++s) {
    const uint64_t bytes = program->steps[s].workspace_bytes;
    program->workspace_bytes = bytes > program->workspace_bytes ? bytes : program->workspace_bytes;
    program->n_kernels += program->steps[s].run != NULL;
    program->n_rounded += program->steps[s].rounds;
  }
  if (program->workspace_bytes > INT64_MAX / 4) {
    return opipe_fail(err, OPIPE_E_LIMIT, "a kernel would need %llu bytes of workspace",
                      (unsigned long long)program->workspace_bytes);
  }
  if ((program->flags & OPIPE_COMPILE_POISON) != 0)
    program->workspace_bytes += CPU_RED_ZONE;
  program->arena_bytes =
      cpu_align_up(program->temp_bytes + program->workspace_bytes, CPU_ALIGN_BYTES);
  return OPIPE_OK;
}
