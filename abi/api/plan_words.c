/* SPDX-License-Identifier: Apache-2.0 */
/* Params of a plan as lines of text, so that processes that differ can name the difference. */
#include <inttypes.h>

#include "abi/api/team/plan_team.h"

enum { KIND_U32, KIND_U64, KIND_I64, KIND_F64, KIND_TEXT };

typedef struct word {
  const char *name;
  size_t offset;
  uint32_t kind;
} word;

#define WORD(type, field, kind, name) \
  { name, offsetof(type, field), KIND_##kind }

static const word plan_words[] = {WORD(opipe_plan_params, n_stages, U32, "stages"),
                                  WORD(opipe_plan_params, n_ranks, U32, "ranks"),
                                  WORD(opipe_plan_params, n_microbatches, U32, "micro-batches"),
                                  WORD(opipe_plan_params, replicas, U32, "replicas"),
                                  WORD(opipe_plan_params, tensor, U32, "tensor width"),
                                  WORD(opipe_plan_params, offload, TEXT, "offload"),
                                  WORD(opipe_plan_params, offload_bytes, U64, "offload's memory"),
                                  WORD(opipe_plan_params, schedule, TEXT, "schedule"),
                                  WORD(opipe_plan_params, cut, TEXT, "cut"),
                                  WORD(opipe_plan_params, batch_dim, TEXT, "batch dimension"),
                                  WORD(opipe_plan_params, memory_bytes, U64, "memory"),
                                  WORD(opipe_plan_params, depth, U32, "depth"),
                                  WORD(opipe_plan_params, cost, U32, "cost"),
                                  WORD(opipe_plan_params, flags, U32, "flags"),
                                  WORD(opipe_plan_params, transport, TEXT, "transport"),
                                  WORD(opipe_plan_params, n_devices, U32, "devices"),
                                  WORD(opipe_plan_params, n_descriptions, U32, "described devices"),
                                  WORD(opipe_plan_params, cluster_bytes, U64, "bytes of a cluster"),
                                  WORD(opipe_plan_params, n_streams, U32, "streams")};

static const word train_words[] = {
    WORD(opipe_train_options, loss, U32, "loss"),
    WORD(opipe_train_options, output, TEXT, "loss of output"),
    WORD(opipe_train_options, labels, TEXT, "labels"),
    WORD(opipe_train_options, ignore, I64, "ignored label"),
    WORD(opipe_train_options, smoothing, F64, "smoothing"),
    WORD(opipe_train_options, shift, U32, "shift"),
    WORD(opipe_train_options, recompute, U32, "recomputation"),
    WORD(opipe_train_options, compute, U32, "compute type"),
    WORD(opipe_train_options, optimizer, U32, "optimizer"),
    WORD(opipe_train_options, seed, U64, "seed"),
    WORD(opipe_train_options, lr, F64, "learning rate"),
    WORD(opipe_train_options, momentum, F64, "momentum"),
    WORD(opipe_train_options, beta1, F64, "beta1"),
    WORD(opipe_train_options, beta2, F64, "beta2"),
    WORD(opipe_train_options, epsilon, F64, "epsilon"),
    WORD(opipe_train_options, decay, F64, "decay"),
    WORD(opipe_train_options, clip_norm, F64, "clipping norm"),
    WORD(opipe_train_options, flags, U32, "training flags"),
    WORD(opipe_train_options, lr_schedule, U32, "learning rate schedule"),
    WORD(opipe_train_options, warmup_steps, U64, "warm-up steps"),
    WORD(opipe_train_options, total_steps, U64, "total steps"),
    WORD(opipe_train_options, loss_scaling, U32, "loss scaling")};

static void add_word(const word *w, const void *params, opi_text *out) {
  const char *at = (const char *)params + w->offset;
  uint32_t u32 = 0;
  uint64_t u64 = 0;
  double number = 0;
  const char *text = NULL;
  opi_text_printf(out, "%s ", w->name);
  switch (w->kind) {
    case KIND_U32:
      memcpy(&u32, at, sizeof u32);
      opi_text_printf(out, "%" PRIu32 "\n", u32);
      break;
    case KIND_U64:
      memcpy(&u64, at, sizeof u64);
      opi_text_printf(out, "%" PRIu64 "\n", u64);
      break;
    case KIND_I64:
      memcpy(&u64, at, sizeof u64);
      opi_text_printf(out, "%" PRId64 "\n", (int64_t)u64);
      break;
    case KIND_F64:
      memcpy(&number, at, sizeof number);
      opi_text_printf(out, "%.17g\n", number);
      break;
    default:
      memcpy(&text, at, sizeof text);
      opi_text_printf(out, "%s%s%s\n", text == NULL ? "" : "'", text == NULL ? "not given" : text,
                      text == NULL ? "" : "'");
      break;
  }
}

static void add_list(const char *name, const uint32_t *list, uint32_t n, opi_text *out) {
  opi_text_printf(out, "%s", name);
  for (uint32_t i = 0; i < n; ++i)
    opi_text_printf(out, "%s%" PRIu32, i == 0 ? " " : ",", list[i]);
  opi_text_printf(out, "%s\n", n == 0 ? " not given" : "");
}

static void add_words(const word *words, size_t n, const void *of, opi_text *out) {
  for (size_t i = 0; of != NULL && i < n; ++i)
    add_word(&words[i], of, out);
}

static void add_globs(const opipe_train_options *of, opi_text *out) {
  for (uint32_t i = 0; of != NULL && i < of->n_globs; ++i) {
    opipe_train_glob glob;
    opi_array_get(of->globs, of->globs_stride, i, &glob, sizeof glob);
    opi_text_printf(out, "%s '%s'\n", glob.trainable != 0 ? "trainable" : "frozen", glob.pattern);
  }
  for (uint32_t i = 0; of != NULL && i < of->n_no_decay; ++i)
    opi_text_printf(out, "no decay of '%s'\n", of->no_decay[i]);
}

void opi_plan_params_write(const opipe_plan_params *params, opi_text *out) {
  add_words(plan_words, OPI_COUNT(plan_words), params, out);
  add_list("replicas of stages", params->stage_replicas, params->n_stage_replicas, out);
  add_list("places", params->places, params->n_places, out);
  add_words(train_words, OPI_COUNT(train_words), params->train, out);
  add_globs(params->train, out);
  opi_text_add(out, "", 1); /* terminates it */
}
