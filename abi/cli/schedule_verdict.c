/* SPDX-License-Identifier: Apache-2.0 */
/* Machine-readable reasons for a refused order: the place in the proof's message, "rank 1, step 5:
 * 2F0"; for a deadlock the cycle of waiting ranks; or the missing action. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "schedule_verdict.h"

static const char WAITS[] = " waits for ", MISSING[] = " is missing (",
                  HOMELESS[] = " is on no rank";

enum { UNSAID = -1 };

typedef struct place {
  long rank, step;    /* UNSAID: not in the message */
  const char *action; /* [n], in the message; n == 0: none */
  size_t n;
} place;

/* "2F0", "1@1REDUCE", "STEP" */
static bool is_action(const char *text) {
  return isdigit((unsigned char)*text) != 0 || strncmp(text, "STEP", 4) == 0;
}

/* Finds the first place at or after `at`, and returns its end. NULL: there is none. */
static const char *find_place(const char *at, place *out) {
  for (at = strstr(at, "rank "); at != NULL; at = strstr(at + 1, "rank ")) {
    int n = 0;
    if (sscanf(at, "rank %ld, step %ld: %n", &out->rank, &out->step, &n) != 2 || n == 0)
      continue;
    out->action = at + n;
    out->n = is_action(out->action) ? strcspn(out->action, " ;:") : 0;
    return out->action + out->n;
  }
  return NULL;
}

/* "1B0 is missing (stage 1, replica 0 on rank 1, ...)": has a rank but no step. */
static bool find_missing(const char *why, place *out) {
  const char *end = strstr(why, MISSING), *on = end == NULL ? NULL : strstr(end, "on rank ");
  *out = (place){.rank = UNSAID, .step = UNSAID, .action = end};
  if (end == NULL)
    return false;
  while (out->action > why && out->action[-1] != ' ')
    --out->action;
  out->n = (size_t)(end - out->action);
  if (on == NULL || sscanf(on, "on rank %ld", &out->rank) != 1 || out->rank < 0)
    out->rank = UNSAID;
  return true;
}

bool cli_is_verdict(const char *why) {
  place at;
  return find_place(why, &at) != NULL || find_missing(why, &at) || strstr(why, HOMELESS) != NULL;
}

static void put_number(FILE *json, const char *name, long value) {
  if (value == UNSAID)
    (void)fprintf(json, "\"%s\": null, ", name);
  else
    (void)fprintf(json, "\"%s\": %ld, ", name, value);
}

static void put_place(FILE *json, const place *p) {
  put_number(json, "rank", p->rank);
  put_number(json, "step", p->step);
  if (p->n == 0)
    (void)fputs("\"action\": null", json);
  else
    (void)fprintf(json, "\"action\": \"%.*s\"", (int)p->n, p->action);
}

/* left_out: number of members for which the message has no room. */
static void put_cycle(FILE *json, const char *why) {
  place here, on;
  const char *end = why;
  unsigned left_out = 0;
  bool first = true;
  (void)fputs(", \"cycle\": [", json);
  for (const char *at = why; (at = find_place(at, &here)) != NULL; at = end) {
    if (strncmp(at, WAITS, strlen(WAITS)) != 0 || strncmp(at + strlen(WAITS), "rank ", 5) != 0 ||
        (at = find_place(at, &on)) == NULL)
      break;
    end = at;
    (void)fputs(first ? "{" : ", {", json);
    put_place(json, &here);
    (void)fputs(", \"waits_for\": {", json);
    put_place(json, &on);
    (void)fputs("}}", json);
    first = false;
  }
  if (first || sscanf(end, "; and %u more", &left_out) != 1)
    left_out = 0;
  (void)fprintf(json, "], \"left_out\": %u", left_out);
}

void cli_put_verdict(FILE *json, const char *rule, const char *why) {
  place first = {.rank = UNSAID, .step = UNSAID};
  (void)fprintf(json, "{\"rule\": \"%s\", \"proven\": %s", rule, why == NULL ? "true" : "false");
  if (why != NULL) {
    (void)fputs(", \"why\": ", json);
    cli_json_text(json, why);
    (void)fputs(", ", json);
    if (find_place(why, &first) == NULL)
      (void)find_missing(why, &first);
    put_place(json, &first);
    put_cycle(json, why);
  }
  (void)fputs("}\n", json);
}
