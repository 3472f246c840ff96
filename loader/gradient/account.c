/* SPDX-License-Identifier: Apache-2.0 */
/* An independent look at what is trained: the file's float initializers, as its bytes have them,
 * against the parameters by name. A parameter belongs to the tensor at whose place in the file the
 * loader read it; one that an Identity of the file made of an initializer belongs to that.
 */
#include "loader/gradient/account.h"

#include <inttypes.h>
#include <string.h>

#include "loader/graph/behind.h"

enum { NAMES_MOST = 8 /* in a line of text */ };

typedef struct account {
  const opi_model *model;
  const char *const *trained; /* [n] */
  opi_file_tensor *tensors;   /* [n_tensors] */
  uint32_t *owner;   /* [n] index in tensors; OPIPE_NONE: it is no initializer of the file */
  uint32_t *n_owned; /* [n_tensors] parameters */
  uint32_t n, n_tensors, n_used;
} account;

static bool is_tensor(const opi_file_tensor *t, const opi_value *value) {
  if (t->at != 0 || value->at != 0)
    return t->at == value->at;
  return strlen(value->name) == t->n_name && memcmp(value->name, t->name, t->n_name) == 0;
}

static opipe_status fill(account *a, opi_arena *arena, opipe_error *err) {
  OPI_TRY(opi_model_float_tensors(a->model, arena, &a->tensors, &a->n_tensors, err));
  a->owner = OPI_ARENA_ARRAY(arena, uint32_t, a->n);
  a->n_owned = OPI_ARENA_ARRAY(arena, uint32_t, a->n_tensors);
  if (a->owner == NULL || a->n_owned == NULL)
    return opi_fail_nomem(err, ((uint64_t)a->n + a->n_tensors) * 4, "initializers");
  for (uint32_t i = 0; i < a->n; ++i) {
    const opi_value *value = opi_initializer_behind(a->model->graph, a->trained[i]);
    a->owner[i] = OPIPE_NONE;
    for (uint32_t t = 0; value != NULL && t < a->n_tensors && a->owner[i] == OPIPE_NONE; ++t) {
      if (is_tensor(&a->tensors[t], value))
        a->owner[i] = t;
    }
    if (a->owner[i] != OPIPE_NONE)
      a->n_used += a->n_owned[a->owner[i]]++ == 0;
  }
  return OPIPE_OK;
}

/* ---- text ---- */

typedef struct names {
  opi_text *text;
  bool json;
  uint32_t n; /* so far */
} names;

static void add_name(names *list, const char *name, uint64_t n_name) {
  ++list->n;
  if (!list->json && list->n > NAMES_MOST)
    return;
  if (list->n > 1)
    opi_text_puts(list->text, ", ");
  if (!list->json) {
    opi_text_printf(list->text, "%.*s", (int)n_name, name);
    return;
  }
  char own[512];
  const size_t length = n_name < sizeof own ? (size_t)n_name : sizeof own - 1;
  memcpy(own, name, length);
  own[length] = '\0';
  opi_text_json(list->text, own);
}

static void end_names(names *list) {
  if (!list->json && list->n > NAMES_MOST)
    opi_text_printf(list->text, " and %" PRIu32 " more", list->n - NAMES_MOST);
}

/* Parameters of tensor t; OPIPE_NONE: of none. */
static void put_parameters(const account *a, uint32_t t, opi_text *text, bool json) {
  names list = {.text = text, .json = json};
  for (uint32_t i = 0; i < a->n; ++i) {
    if (a->owner[i] == t)
      add_name(&list, a->trained[i], strlen(a->trained[i]));
  }
  end_names(&list);
}

static void put_others(const account *a, opi_text *text, bool json) {
  names list = {.text = text, .json = json};
  for (uint32_t t = 0; t < a->n_tensors; ++t) {
    if (a->n_owned[t] == 0)
      add_name(&list, a->tensors[t].name, a->tensors[t].n_name);
  }
  end_names(&list);
}

static uint32_t n_strangers(const account *a) {
  uint32_t n = 0;
  for (uint32_t i = 0; i < a->n; ++i)
    n += a->owner[i] == OPIPE_NONE;
  return n;
}

static void put_lines(const account *a, opi_text *text) {
  opi_text_printf(text,
                  "the file has %" PRIu32 " float initializers: %" PRIu32 " became %" PRIu32
                  " parameters, %" PRIu32 " are not trained",
                  a->n_tensors, a->n_used, a->n - n_strangers(a), a->n_tensors - a->n_used);
  if (a->n_used < a->n_tensors) {
    opi_text_puts(text, ": ");
    put_others(a, text, false);
  }
  opi_text_puts(text, "\n");
  for (uint32_t t = 0; t < a->n_tensors; ++t) {
    if (a->n_owned[t] < 2)
      continue;
    opi_text_printf(text,
                    "initializer %.*s became %" PRIu32 " parameters: ", (int)a->tensors[t].n_name,
                    a->tensors[t].name, a->n_owned[t]);
    put_parameters(a, t, text, false);
    opi_text_puts(text, "\n");
  }
  if (n_strangers(a) != 0) {
    opi_text_puts(text, "trained, and no float initializer of the file: ");
    put_parameters(a, OPIPE_NONE, text, false);
    opi_text_puts(text, "\n");
  }
}

static void put_object(const account *a, opi_text *text) {
  names list = {.text = text, .json = true};
  opi_text_printf(text,
                  "{\"float_initializers\": %" PRIu32 ", \"trained\": %" PRIu32
                  ", \"parameters\": %" PRIu32 ", \"not_trained\": [",
                  a->n_tensors, a->n_used, a->n);
  put_others(a, text, true);
  opi_text_puts(text, "], \"several\": {");
  for (uint32_t t = 0; t < a->n_tensors; ++t) {
    if (a->n_owned[t] < 2)
      continue;
    add_name(&list, a->tensors[t].name, a->tensors[t].n_name);
    opi_text_puts(text, ": [");
    put_parameters(a, t, text, true);
    opi_text_puts(text, "]");
  }
  opi_text_puts(text, "}, \"no_initializer\": [");
  put_parameters(a, OPIPE_NONE, text, true);
  opi_text_puts(text, "]}");
}

opipe_status opi_account_write(const opi_model *model, const char *const *trained, uint32_t n,
                               bool json, opi_text *text, opipe_error *err) {
  account a = {.model = model, .trained = trained, .n = n};
  opi_arena arena;
  opi_arena_init(&arena, model->allocator, 0);
  const opipe_status status = fill(&a, &arena, err);
  if (status == OPIPE_OK && json)
    put_object(&a, text);
  else if (status == OPIPE_OK)
    put_lines(&a, text);
  opi_arena_release(&arena);
  return status;
}
