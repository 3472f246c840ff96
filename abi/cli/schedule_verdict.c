/* SPDX-License-Identifier: Apache-2.0 */
/* Why an order is refused, for machines: the places that the proof's message names, "rank 1, step
 * 5: 2F0"; of a deadlock the circle of those that wait. */
#include <stdlib.h>
#include <string.h>

#include "schedule_verdict.h"

static const char WAITS[] = " waits for ";

typedef struct place {
  unsigned rank, step;
  const char *action; /* [n], in the message */
  size_t n;
} place;

/* The first place at or behind `at`; where it ends. NULL: there is none. */
static const char *find_place(const char *at, place *out) {
  for (at = strstr(at, "rank "); at != NULL; at = strstr(at + 1, "rank ")) {
    int n = 0;
    if (sscanf(at, "rank %u, step %u: %n", &out->rank, &out->step, &n) != 2 || n == 0)
      continue;
    out->action = at + n;
    out->n = strcspn(out->action, " ;:");
    return out->action + out->n;
  }
  return NULL;
}

static void put_place(FILE *json, const place *p) {
  (void)fprintf(json, "\"rank\": %u, \"step\": %u, \"action\": \"%.*s\"", p->rank, p->step,
                (int)p->n, p->action);
}

static void put_cycle(FILE *json, const char *why) {
  place here, on;
  const char *end = why;
  bool first = true;
  (void)fputs(", \"cycle\": [", json);
  while ((end = find_place(end, &here)) != NULL) {
    if (strncmp(end, WAITS, strlen(WAITS)) != 0 || strncmp(end + strlen(WAITS), "rank ", 5) != 0 ||
        (end = find_place(end, &on)) == NULL)
      break;
    (void)fputs(first ? "{" : ", {", json);
    put_place(json, &here);
    (void)fputs(", \"waits_for\": {", json);
    put_place(json, &on);
    (void)fputs("}}", json);
    first = false;
  }
  (void)fputs("]", json);
}

void cli_put_verdict(FILE *json, const char *rule, const char *why) {
  place first;
  (void)fprintf(json, "{\"rule\": \"%s\", \"proven\": %s", rule, why == NULL ? "true" : "false");
  if (why != NULL) {
    (void)fputs(", \"why\": ", json);
    cli_json_text(json, why);
    (void)fputs(", ", json);
    if (find_place(why, &first) != NULL)
      put_place(json, &first);
    else
      (void)fputs("\"rank\": null, \"step\": null, \"action\": null", json);
    put_cycle(json, why);
  }
  (void)fputs("}\n", json);
}
