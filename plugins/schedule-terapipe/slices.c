/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths of slices: read from the setting, kept once per instance until close; and the layout. */
#include "slices.h"

opipe_status tera_open(const opipe_host *host, opipe_instance **out_self, opipe_error *err) {
  opipe_instance *self =
      (opipe_instance *)host->realloc(host->ctx, NULL, 0, sizeof(opipe_instance), 16);
  if (self == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for an instance of a schedule");
  memset(self, 0, sizeof *self);
  self->host = host;
  if (pthread_mutex_init(&self->lock, NULL) != 0) {
    host->realloc(host->ctx, self, sizeof *self, 0, 16);
    return opipe_fail(err, OPIPE_E_INTERNAL, "a mutex cannot be made");
  }
  *out_self = self;
  return OPIPE_OK;
}

static size_t size_of(uint32_t n) {
  return sizeof(tera_lengths) + n * sizeof(uint32_t);
}

void tera_close(opipe_instance *self) {
  if (self == NULL)
    return;
  const opipe_host *host = self->host;
  while (self->lengths != NULL) {
    tera_lengths *lengths = self->lengths;
    self->lengths = lengths->next;
    host->realloc(host->ctx, lengths, size_of(lengths->n), 0, 16);
  }
  (void)pthread_mutex_destroy(&self->lock);
  host->realloc(host->ctx, self, sizeof *self, 0, 16);
}

/* "a+b+c": how many, and into out [room] as many as fit. 0 when malformed. */
static uint32_t read_lengths(const char *text, uint32_t *out, uint32_t room) {
  uint32_t n = 0;
  for (;;) {
    uint64_t tokens = 0;
    const char *start = text;
    for (; *text >= '0' && *text <= '9' && tokens <= UINT32_MAX; ++text)
      tokens = tokens * 10 + (uint64_t)(*text - '0');
    if (text == start || tokens == 0 || tokens > INT32_MAX || n == TERA_SLICES_MOST)
      return 0;
    if (n < room)
      out[n] = (uint32_t)tokens;
    ++n;
    if (*text == '\0')
      return n;
    if (*text++ != '+')
      return 0;
  }
}

/* The list that equals the text's, made when it is new. */
static opipe_status keep_lengths(opipe_instance *self, const char *text, uint32_t n,
                                 const uint32_t **out_tokens, opipe_error *err) {
  const opipe_host *host = self->host;
  tera_lengths *made = (tera_lengths *)host->realloc(host->ctx, NULL, 0, size_of(n), 16);
  if (made == NULL)
    return opipe_fail(err, OPIPE_E_NOMEM, "no memory for %u lengths of slices", n);
  made->n = n;
  (void)read_lengths(text, made->tokens, n);
  (void)pthread_mutex_lock(&self->lock);
  tera_lengths *found = self->lengths;
  while (found != NULL &&
         (found->n != n || memcmp(found->tokens, made->tokens, n * sizeof(uint32_t)) != 0))
    found = found->next;
  if (found == NULL) {
    made->next = self->lengths;
    self->lengths = made;
    found = made;
    made = NULL;
  }
  (void)pthread_mutex_unlock(&self->lock);
  if (made != NULL)
    host->realloc(host->ctx, made, size_of(n), 0, 16);
  *out_tokens = found->tokens;
  return OPIPE_OK;
}

static opipe_status read_settings(const opipe_layout_request *request, bool uneven,
                                  const char *name, uint32_t *out_n, const char **out_text,
                                  opipe_error *err) {
  const opipe_schedule_setting *settings = request->settings;
  const char *text = uneven ? opipe_setting_find(settings, request->n_settings, "lengths") : NULL;
  const bool counted = opipe_setting_find(settings, request->n_settings, "slices") != NULL;
  uint32_t n = 0;
  const opipe_status status =
      opipe_setting_int(settings, request->n_settings, "slices", 1, TERA_SLICES_MOST, 2, &n, err);
  if (status < 0)
    return status;
  if (text != NULL) {
    const uint32_t given = read_lengths(text, NULL, 0);
    if (given == 0) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule '%s': lengths=%.64s is not a sum a+b+... of 1 to %d positive "
                        "integers",
                        name, text, TERA_SLICES_MOST);
    }
    if (counted && n != given) {
      return opipe_fail(err, OPIPE_E_INVALID,
                        "schedule '%s': slices=%u, but lengths= has %u; give one of them", name, n,
                        given);
    }
    n = given;
  }
  *out_n = n;
  *out_text = text;
  return OPIPE_OK;
}

opipe_status tera_lay_out(opipe_instance *self, const opipe_layout_request *request,
                          opipe_layout *io_layout, bool uneven, const char *name,
                          opipe_error *err) {
  uint32_t n = 0;
  const char *text = NULL;
  const uint32_t *tokens = NULL;
  opipe_status status = read_settings(request, uneven, name, &n, &text, err);
  if (status >= 0 && text != NULL)
    status = keep_lengths(self, text, n, &tokens, err);
  if (status < 0)
    return status;
  status = opipe_layout_chunks(request, io_layout, 1, OPIPE_PLACE_LOOP, name, err);
  io_layout->n_slices = n;
  io_layout->slice_lengths = tokens;
  return status;
}
