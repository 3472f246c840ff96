/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers for the names of nodes: what a kernel can report. */
#include "cuda.h"

enum { FIRST_ROOM = 64 };

opipe_status cuda_names_open(cuda_names *names, opipe_error *err) {
  return pthread_mutex_init(&names->lock, NULL) == 0
             ? OPIPE_OK
             : opipe_fail(err, OPIPE_E_NOMEM, "backend cuda: no memory for a lock");
}

void cuda_names_close(cuda_names *names, const opipe_host *host) {
  for (uint32_t i = 0; i < names->n; ++i)
    opipe_free(host, names->texts[i], strlen(names->texts[i]) + 1, 1);
  opipe_free(host, names->texts, names->room * sizeof names->texts[0], _Alignof(char *));
  opipe_free(host, names->sorted, names->room * sizeof names->sorted[0], _Alignof(uint32_t));
  (void)pthread_mutex_destroy(&names->lock);
}

static void *grow(const opipe_host *host, void *old, uint32_t room, uint32_t more, size_t size,
                  size_t align) {
  return host->realloc(host->ctx, old, room * size, more * size, align);
}

static opipe_status make_room(cuda_names *names, const opipe_host *host, opipe_error *err) {
  const uint32_t more = names->room == 0 ? FIRST_ROOM : 2 * names->room;
  if (names->n < names->room)
    return OPIPE_OK;
  char **texts = grow(host, names->texts, names->room, more, sizeof *texts, _Alignof(char *));
  if (texts == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u names of nodes", more);
  names->texts = texts;
  uint32_t *sorted =
      grow(host, names->sorted, names->room, more, sizeof *sorted, _Alignof(uint32_t));
  if (sorted == NULL) {
    /* both arrays are of one size */
    names->texts = grow(host, texts, more, names->room, sizeof *texts, _Alignof(char *));
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u names of nodes", more);
  }
  names->sorted = sorted;
  names->room = more;
  return OPIPE_OK;
}

/* The place of `text` among the sorted ones. */
static uint32_t place_of(const cuda_names *names, const char *text, bool *out_found) {
  uint32_t low = 0, high = names->n;
  *out_found = false;
  while (low < high && !*out_found) {
    const uint32_t middle = low + (high - low) / 2;
    const int order = strcmp(names->texts[names->sorted[middle]], text);
    if (order < 0)
      low = middle + 1;
    else
      high = middle;
    if (order == 0) {
      *out_found = true;
      low = middle;
    }
  }
  return low;
}

static opipe_status insert(cuda_names *names, const opipe_host *host, const char *text, uint32_t at,
                           opipe_error *err) {
  const size_t n_bytes = strlen(text) + 1;
  CUDA_TRY(make_room(names, host, err));
  char *copy = opipe_zeroed(host, "a name", n_bytes, 1, err);
  if (copy == NULL)
    return OPIPE_E_NOMEM;
  memcpy(copy, text, n_bytes);
  memmove(names->sorted + at + 1, names->sorted + at, (names->n - at) * sizeof names->sorted[0]);
  names->sorted[at] = names->n;
  names->texts[names->n++] = copy;
  return OPIPE_OK;
}

opipe_status cuda_names_add(cuda_names *names, const opipe_host *host, const char *text,
                            uint32_t *out_number, opipe_error *err) {
  bool found = false;
  opipe_status status = OPIPE_OK;
  (void)pthread_mutex_lock(&names->lock);
  const uint32_t at = place_of(names, text, &found);
  if (!found)
    status = insert(names, host, text, at, err);
  if (status >= 0)
    *out_number = names->sorted[at];
  (void)pthread_mutex_unlock(&names->lock);
  return status;
}

void cuda_names_text(cuda_names *names, uint32_t number, char *out, size_t room) {
  (void)pthread_mutex_lock(&names->lock);
  (void)snprintf(out, room, "%s", number < names->n ? names->texts[number] : "?");
  (void)pthread_mutex_unlock(&names->lock);
}
