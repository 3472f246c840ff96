/* SPDX-License-Identifier: Apache-2.0 */
/* Machine-readable output: one document on standard output, once it is complete. */
#include <math.h>
#include <stdlib.h>

#include "cli.h"

int cli_json_begin(const cli_options *o, cli_json *json) {
  *json = (cli_json){NULL, NULL, 0};
  if (!o->out.json)
    return CLI_DONE;
  json->file = open_memstream(&json->data, &json->n);
  return json->file == NULL ? cli_fail("out of memory") : CLI_DONE;
}

int cli_json_end(cli_json *json, int status) {
  const bool answers = status == CLI_DONE || status == CLI_CHECK_FAILED || status >= CLI_SIGNALLED;
  if (json->file == NULL)
    return status;
  if (fclose(json->file) != 0)
    status = cli_fail("out of memory");
  else if (answers && fwrite(json->data, 1, json->n, stdout) != json->n)
    status = CLI_FAILED;
  free(json->data);
  *json = (cli_json){NULL, NULL, 0};
  return status;
}

void cli_json_text(FILE *json, const char *text) {
  (void)fputc('"', json);
  for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\' || *at < ' ')
      (void)fprintf(json, "\\u%04x", *at);
    else
      (void)fputc(*at, json);
  }
  (void)fputc('"', json);
}

void cli_json_number(FILE *json, double value) {
  if (isfinite(value))
    (void)fprintf(json, "%.9g", value);
  else
    (void)fputs("null", json);
}
