/* SPDX-License-Identifier: Apache-2.0 */
/* Messages are UTF-8 whatever they name, cut between characters, and the same whatever the host's
 * struct held before.
 */
#include "loader/base/base.h"
#include "tests/support/support.h"

enum { ROOM = sizeof(((opipe_error *)NULL)->message) };

static void names_of(const char *character, size_t shift, char *out, size_t room) {
  size_t n = shift;
  memset(out, 'a', shift);
  for (; n + strlen(character) < room; n += strlen(character))
    memcpy(out + n, character, strlen(character));
  out[n] = '\0';
}

/* Characters of one to four bytes, at every place. */
static void test_cut_between_characters(void) {
  static const char *const characters[] = {"x", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80"};
  char name[2 * ROOM];
  for (size_t c = 0; c < OPI_COUNT(characters); ++c) {
    for (size_t shift = 0; shift < 8; ++shift) {
      const size_t length = strlen(characters[c]);
      opipe_error err = OPIPE_ERROR_INIT;
      names_of(characters[c], shift, name, sizeof name);
      (void)opi_fail(&err, OPIPE_E_INVALID, "%s", name);
      const size_t n = strlen(err.message);
      OPI_ASSERT(opi_text_is_utf8(err.message));
      OPI_ASSERT(n < ROOM && n + length >= ROOM && memcmp(err.message, name, n) == 0);
      (void)opi_error_prefix(&err, "rank %u: ", 12u);
      OPI_ASSERT(opi_text_is_utf8(err.message));
      OPI_ASSERT(strncmp(err.message, "rank 12: ", 9) == 0);
    }
  }
}

static void test_other_bytes_become_question_marks(void) {
  opipe_error err = OPIPE_ERROR_INIT;
  (void)opi_fail(&err, OPIPE_E_INVALID, "file '%s' of '%.2s'", "\xe9t\xe9.onnx\t\n",
                 "a\xe2\x82\xac");
  OPI_ASSERT_STR(err.message, "file '?t?.onnx\t\n' of 'a?'");
  (void)opi_fail(&err, OPIPE_E_INVALID, "%s", "whole \xe2\x82\xac");
  OPI_ASSERT_STR(err.message, "whole \xe2\x82\xac");
  (void)opi_fail(&err, OPIPE_E_INVALID, "%s", "\x80\x80\x80\x80\x80");
  OPI_ASSERT_STR(err.message, "?????");
  (void)opi_fail(&err, OPIPE_E_INVALID, "%s", "");
  OPI_ASSERT_STR(err.message, "");
}

/* Nothing behind the end is touched, or believed. */
static void test_what_lay_there_before(void) {
  static const int fills[] = {0, 'z', 0xff};
  char first[ROOM];
  for (size_t i = 0; i < OPI_COUNT(fills); ++i) {
    opipe_error err;
    memset(&err, fills[i], sizeof err);
    err.struct_size = sizeof err;
    (void)opi_fail(&err, OPIPE_E_NOTFOUND, "unknown option '%s'", "x");
    OPI_ASSERT_INT((unsigned char)err.message[ROOM - 1], (unsigned char)fills[i]);
    OPI_ASSERT_INT(opi_answer_failed(OPIPE_E_NOTFOUND, "backend", "b", "device_open", &err),
                   OPIPE_E_NOTFOUND);
    if (i == 0)
      memcpy(first, err.message, sizeof first);
    OPI_ASSERT_STR(err.message, first);
  }
  OPI_ASSERT_STR(first, "unknown option 'x'");
}

OPI_TEST_MAIN("messages", OPI_TEST(test_cut_between_characters),
              OPI_TEST(test_other_bytes_become_question_marks),
              OPI_TEST(test_what_lay_there_before))
