/* SPDX-License-Identifier: Apache-2.0 */
/* The server's functions by name, in the process that has loaded this library; errors and log. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "adapter.h"

tri_table tri;

bool tri_look_up(const void *caller) {
  Dl_info at;
  void *server = dladdr(caller, &at) == 0 || at.dli_fname == NULL
                     ? NULL
                     : dlopen(at.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  bool found = true;
  void *symbol = NULL;
#define LOOK_UP(prefix, name, result, parameters)           \
  symbol = dlsym(RTLD_DEFAULT, "TRITON" #prefix "_" #name); \
  if (symbol == NULL && server != NULL)                     \
    symbol = dlsym(server, "TRITON" #prefix "_" #name);     \
  memcpy(&tri.name, &symbol, sizeof symbol);                \
  found = found && symbol != NULL;
  TRI_FUNCTIONS(LOOK_UP)
  return found;
}

tri_error *tri_fail(int code, const char *fmt, ...) {
  char text[1024];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  return tri.ErrorNew(code, text);
}

tri_error *tri_fail_with(const char *doing, const opipe_error *err) {
  static const struct {
    opipe_status status;
    int code;
  } codes[] = {
      {OPIPE_E_INVALID, TRI_ERROR_INVALID_ARG},     {OPIPE_E_NOTFOUND, TRI_ERROR_NOT_FOUND},
      {OPIPE_E_UNSUPPORTED, TRI_ERROR_UNSUPPORTED}, {OPIPE_E_CANCELLED, TRI_ERROR_CANCELLED},
      {OPIPE_E_LIMIT, TRI_ERROR_UNAVAILABLE},       {OPIPE_E_NOMEM, TRI_ERROR_UNAVAILABLE},
      {OPIPE_E_TIMEOUT, TRI_ERROR_UNAVAILABLE}};
  int code = TRI_ERROR_INTERNAL;
  for (size_t i = 0; i < sizeof codes / sizeof codes[0]; ++i)
    code = codes[i].status == err->status ? codes[i].code : code;
  return tri_fail(code, "onnx-pipe: %s%s%s", doing == NULL ? "" : doing, doing == NULL ? "" : ": ",
                  err->message);
}

tri_error *tri_no_memory(void) {
  return tri_fail(TRI_ERROR_UNAVAILABLE, "onnx-pipe: out of memory");
}

void tri_log(int level, const char *fmt, ...) {
  char text[2048];
  va_list args;
  va_start(args, fmt);
  (void)vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  tri_error *error = tri.LogMessage(level, "onnx-pipe", 0, text);
  if (error != NULL)
    tri.ErrorDelete(error);
}

void tri_drop(tri_error *error, const char *doing) {
  if (error == NULL)
    return;
  tri_log(TRI_LOG_ERROR, "onnx-pipe: %s: %s", doing, tri.ErrorMessage(error));
  tri.ErrorDelete(error);
}

int tri_type_of(uint32_t dtype, const char **out_name) {
  static const struct {
    const char *name;
    uint32_t ours;
    int theirs;
  } rows[] = {
#define TYPE_ROW(ours, theirs, name) {name, OPIPE_##ours, theirs},
      TRI_TYPES(TYPE_ROW)};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    if (rows[i].ours == dtype) {
      *out_name = rows[i].name;
      return rows[i].theirs;
    }
  }
  *out_name = NULL;
  return 0;
}
