/* SPDX-License-Identifier: Apache-2.0 */
/* Growing text with one error check at the end, and the parsers of sizes, integers and globs that
 * options share. */
#include "loader/base/base.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void opi_text_init(opi_text *text, const opipe_allocator *allocator) {
  memset(text, 0, sizeof(*text));
  text->allocator = allocator;
}

void opi_text_release(opi_text *text) {
  opi_free(text->allocator, text->data, text->room);
  text->data = NULL;
  text->n = text->room = 0;
}

static bool make_room(opi_text *text, size_t more) {
  if (text->failed)
    return false;
  size_t need = 0;
  if (__builtin_add_overflow(text->n, more, &need) ||
      __builtin_add_overflow(need, (size_t)1, &need)) {
    text->failed = true;
    return false;
  }
  if (need <= text->room)
    return true;
  size_t room = text->room < 128 ? 128 : text->room;
  while (room < need)
    room = room > SIZE_MAX / 2 ? need : room * 2;
  char *data = opi_resize(text->allocator, text->data, text->room, room);
  if (data == NULL) {
    text->failed = true;
    return false;
  }
  text->data = data;
  text->room = room;
  return true;
}

void opi_text_add(opi_text *text, const char *data, size_t n) {
  if (!make_room(text, n))
    return;
  if (n != 0)
    memcpy(text->data + text->n, data, n);
  text->n += n;
  text->data[text->n] = '\0';
}

void opi_text_puts(opi_text *text, const char *data) {
  opi_text_add(text, data, strlen(data));
}

void opi_text_printf(opi_text *text, const char *fmt, ...) {
  va_list args;
  va_start(args, fmt);
  const int n = vsnprintf(NULL, 0, fmt, args);
  va_end(args);
  if (n < 0) {
    text->failed = true;
    return;
  }
  if (!make_room(text, (size_t)n))
    return;
  va_start(args, fmt);
  (void)vsnprintf(text->data + text->n, (size_t)n + 1, fmt, args);
  va_end(args);
  text->n += (size_t)n;
}

void opi_text_shape(opi_text *text, const int64_t *shape, uint32_t rank) {
  opi_text_puts(text, "[");
  for (uint32_t d = 0; d < rank; ++d)
    opi_text_printf(text, d == 0 ? "%" PRId64 : ", %" PRId64, shape[d]);
  opi_text_puts(text, "]");
}

void opi_text_json(opi_text *text, const char *value) {
  opi_text_puts(text, "\"");
  for (const char *at = value; *at != '\0'; ++at) {
    const unsigned char c = (unsigned char)*at;
    if (c == '"' || c == '\\')
      opi_text_printf(text, "\\%c", c);
    else if (c < 0x20)
      opi_text_printf(text, "\\u%04x", c);
    else
      opi_text_add(text, at, 1);
  }
  opi_text_puts(text, "\"");
}

/* Bytes of the UTF-8 sequence at text [n], 0: none. */
static size_t sequence(const unsigned char *text, size_t n) {
  const unsigned char c = text[0];
  const size_t length = c < 0x80   ? 1
                        : c < 0xc2 ? 0
                        : c < 0xe0 ? 2
                        : c < 0xf0 ? 3
                        : c < 0xf5 ? 4
                                   : 0;
  if (length == 0 || length > n)
    return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((text[i] & 0xc0) != 0x80)
      return 0;
  }
  const unsigned char second = length > 1 ? text[1] : 0x80;
  const bool longer = (c == 0xe0 && second < 0xa0) || (c == 0xf0 && second < 0x90);
  const bool outside = (c == 0xed && second >= 0xa0) || (c == 0xf4 && second >= 0x90);
  return longer || outside ? 0 : length;
}

bool opi_text_is_utf8(const char *text) {
  const size_t n = strlen(text);
  size_t at = 0, length = 1;
  for (; at < n && length != 0; at += length)
    length = sequence((const unsigned char *)text + at, n - at);
  return length != 0;
}

static bool mend(char *text, size_t end, bool controls) {
  bool changed = false;
  for (size_t i = 0; i < end;) {
    const unsigned char *at = (const unsigned char *)text + i;
    const size_t length = sequence(at, end - i);
    const bool control =
        controls && (at[0] < 0x20 || at[0] == 0x7f || (at[0] == 0xc2 && at[1] < 0xa0));
    if (length == 0 || control) {
      memset(text + i, '?', length == 0 ? 1 : length);
      changed = true;
    }
    i += length == 0 ? 1 : length;
  }
  return changed;
}

bool opi_text_clean(char *text, size_t n) {
  return mend(text, strnlen(text, n), true);
}

void opi_text_mend(char *text) {
  const size_t n = strlen(text);
  size_t last = n; /* where the last character begins */
  while (last > 0 && n - last < 4 && ((unsigned char)text[last - 1] & 0xc0) == 0x80)
    --last;
  if (last > 0 && (unsigned char)text[last - 1] >= 0xc0 &&
      sequence((const unsigned char *)text + last - 1, n - last + 1) == 0)
    text[last - 1] = '\0';
  (void)mend(text, strlen(text), false);
}

const char *opi_text_line(char line[OPI_LINE_ROOM], const char *text) {
  const size_t n = text == NULL ? 0 : strnlen(text, OPI_LINE_ROOM - 1);
  if (n != 0)
    memcpy(line, text, n);
  line[n] = '\0';
  (void)opi_text_clean(line, n);
  return line;
}

opipe_status opi_text_write(const opi_text *text, opipe_write_fn write, void *ctx,
                            opipe_error *err) {
  if (text->failed)
    return opi_fail_nomem(err, text->n, "text");
  if (text->n == 0)
    return OPIPE_OK;
  const opipe_status status = write(ctx, text->data, text->n);
  if (status < 0)
    return opi_fail(err, status, "the sink refused %zu bytes (status %d)", text->n, (int)status);
  return OPIPE_OK;
}

const char *opi_shape_text(char *buffer, size_t room, const int64_t *shape, uint32_t rank) {
  size_t n = 0;
  if (room == 0)
    return "";
  (void)snprintf(buffer, room, "[");
  for (uint32_t d = 0; d < rank; ++d) {
    n = strlen(buffer);
    (void)snprintf(buffer + n, room - n, d == 0 ? "%" PRId64 : ", %" PRId64, shape[d]);
  }
  n = strlen(buffer);
  (void)snprintf(buffer + n, room - n, "]");
  return buffer;
}

bool opi_glob(const char *glob, const char *text) {
  const char *star = NULL, *resume = NULL;
  while (*text != '\0') {
    if (*glob == '*') {
      star = glob++;
      resume = text;
    } else if (*glob == '?' || *glob == *text) {
      ++glob;
      ++text;
    } else if (star != NULL) {
      glob = star + 1;
      text = ++resume;
    } else {
      return false;
    }
  }
  while (*glob == '*')
    ++glob;
  return *glob == '\0';
}

bool opi_parse_int(const char *text, int64_t min, int64_t max, int64_t *out) {
  char *end = NULL;
  if (!((text[0] >= '0' && text[0] <= '9') || (text[0] == '-' && text[1] >= '0' && text[1] <= '9')))
    return false;
  errno = 0;
  const long long value = strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || value < min || value > max)
    return false;
  *out = value;
  return true;
}
