/* SPDX-License-Identifier: Apache-2.0 */
/* --cost "F=1,I=1,W=1,comm=0": stage times, for orders and plans. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"

const opipe_order_costs cli_unit_costs = {
    .struct_size = sizeof(opipe_order_costs), .forward = 1, .input = 1, .weight = 1};

/* Reads one number, or one per stage with '+' between them, into stages (NULL: one number). Returns
 * how many; 0: malformed. */
static uint32_t take_numbers(const char *at, double *out_one, double *stages, char **out_end) {
  for (uint32_t n = 0; n < CLI_COST_STAGES; ++n) {
    const double x = strtod(at, out_end);
    if (*out_end == at || !(x >= 0))
      return 0;
    *out_one = n == 0 ? x : *out_one;
    if (stages != NULL)
      stages[n] = x;
    if (stages == NULL || **out_end != '+')
      return n + 1;
    at = *out_end + 1;
  }
  return 0;
}

/* Removes an earlier list. */
static void drop_list(opipe_order_costs *costs, const double **list) {
  *list = NULL;
  if (costs->stage_forward == NULL && costs->stage_input == NULL && costs->stage_weight == NULL)
    costs->n_stages = 0;
}

int cli_take_costs(const char *value, cli_costs *out) {
  static const char letters[] = "FIW";
  opipe_order_costs *costs = &out->costs;
  double *const alike[] = {&costs->forward, &costs->input, &costs->weight, &costs->comm};
  const double **const per_stage[] = {&costs->stage_forward, &costs->stage_input,
                                      &costs->stage_weight};
  uint32_t said = 0; /* kinds in this text: 1 << kind */
  for (const char *at = value; *at != '\0';) {
    const size_t n = strcspn(at, "=");
    const char *letter = n == 1 ? strchr(letters, *at) : NULL;
    const bool comm = n == 4 && memcmp(at, "comm", 4) == 0;
    char *end = NULL;
    if ((letter == NULL && !comm) || at[n] != '=')
      return cli_usage("--cost %s: only F=, I=, W= and comm= are known", value);
    const size_t k = comm ? CLI_COST_KINDS : (size_t)(letter - letters);
    if ((said >> k & 1) != 0)
      return cli_usage("--cost %s: %.*s= is given twice", value, (int)n, at);
    said |= 1u << k;
    if (!comm)
      drop_list(costs, per_stage[k]);
    const uint32_t count = take_numbers(at + n + 1, alike[k], comm ? NULL : out->stages[k], &end);
    if (count == 0 || (*end != ',' && *end != '\0'))
      return cli_usage("--cost %s: a number >= 0 is needed after '%.*s='", value, (int)n, at);
    if (count > 1 && costs->n_stages != 0 && costs->n_stages != count) {
      return cli_usage("--cost %s: one list has times for %u stages, another for %u", value,
                       costs->n_stages, count);
    }
    if (count > 1) {
      costs->n_stages = count;
      *per_stage[k] = out->stages[k];
    }
    at = end + (*end == ',');
  }
  return CLI_DONE;
}
