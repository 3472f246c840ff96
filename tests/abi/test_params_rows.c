/* SPDX-License-Identifier: Apache-2.0 */
/* The library's rows of the structs that hosts fill in: they cover every byte of every struct, and
 * no struct of the headers lacks them. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/api/params.h"
#include "tests/support/support.h"

static void test_rows_cover_their_structs(void) {
  for (const opi_struct *const *at = opi_structs; *at != NULL; ++at) {
    const opi_struct *s = *at;
    uint32_t end = 0;
    for (uint32_t f = 0; f < s->n_fields; ++f) {
      const opi_field *field = &s->fields[f];
      if (field->offset != end) {
        OPI_FAIL("%s: bytes %u to %u, before '%s', have no row", s->name, end, field->offset,
                 field->name);
      }
      end = field->offset + (uint32_t)field->size;
      if (field->kind >= OPI_CHECK_PART && field->kind <= OPI_CHECK_OTHER)
        OPI_ASSERT(field->inner != NULL);
      if (field->kind == OPI_CHECK_PART)
        OPI_ASSERT_INT(field->size, field->inner->size);
    }
    if (end != s->size)
      OPI_FAIL("%s: the last %u bytes have no row", s->name, s->size - end);
    OPI_ASSERT(s->least <= s->size);
  }
}

static bool has_rows(const char *name, size_t n) {
  for (const opi_struct *const *at = opi_structs; *at != NULL; ++at) {
    if (strlen((*at)->name) == n && strncmp((*at)->name, name, n) == 0)
      return true;
  }
  return false;
}

static bool ends_with(const char *name, size_t n, const char *end) {
  return n >= strlen(end) && strncmp(name + n - strlen(end), end, strlen(end)) == 0;
}

/* All but those that the library fills in, the table itself, and the view, which opipe_get_api
 * judges by its own means. Adds to *io_n. */
static void check_header(const char *stem, uint32_t *io_n) {
  static const char intro[] = "typedef struct opipe_";
  static const char *const exempt_ends[] = {
      "_info", "_report", "opipe_tuned", "opipe_token", "opipe_likely", "opipe_api", "opipe_view"};
  char path[64];
  size_t n_bytes = 0;
  (void)snprintf(path, sizeof path, "abi/include/opipe/%s.h", stem);
  char *text = opi_test_read_file(opi_test_source(path), &n_bytes);
  OPI_ASSERT_FATAL(text != NULL);
  for (const char *at = strstr(text, intro); at != NULL; at = strstr(at + 1, intro)) {
    const char *name = at + strlen(intro) - strlen("opipe_");
    size_t n = 0;
    while (isalnum((unsigned char)name[n]) || name[n] == '_')
      ++n;
    if (name[n + 1] != '{') /* a handle */
      continue;
    ++*io_n;
    bool exempt = false;
    for (size_t i = 0; i < OPI_COUNT(exempt_ends); ++i)
      exempt = exempt || ends_with(name, n, exempt_ends[i]);
    if (!exempt && !has_rows(name, n))
      OPI_FAIL("%.*s of %s has no rows in abi/api/params_tables.c", (int)n, name, path);
  }
  free(text);
}

static void test_every_struct_of_the_headers_has_rows(void) {
  static const char *const headers[] = {"host",     "train",    "state",    "models",   "build",
                                        "simulate", "requests", "planning", "generate", "team"};
  uint32_t n_structs = 0;
  for (size_t i = 0; i < OPI_COUNT(headers); ++i)
    check_header(headers[i], &n_structs);
  OPI_ASSERT(n_structs > 30);
}

OPI_TEST_MAIN("params_rows", OPI_TEST(test_rows_cover_their_structs),
              OPI_TEST(test_every_struct_of_the_headers_has_rows))
