/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of plans. */
#ifndef CLI_PAGE_H
#define CLI_PAGE_H

#include "planning.h"

bool cli_ends_in(const char *path, const char *ending); /* path may be NULL */
/* By how a file's name ends: OPIPE_PLAY_HTML, _SVG, else _TRACE. */
uint32_t cli_play_form(const char *path);
/* Could --html and --trace be written? Before anything is computed. */
int cli_try_pages(const cli_options *o);

/* The file of a plan, the plan, or without both the strategy. */
opipe_status cli_play_it(const cli_session *s, const cli_strategy *strategy,
                         const opipe_play_params *params, uint32_t format, opipe_write_fn write,
                         void *ctx, opipe_error *err);
/* --html: the plan, or without one the strategy, played by `params` (title and answer are set
 * here). strategy->api NULL: no planner was asked. */
int cli_write_page(const cli_options *o, const cli_session *s, const cli_strategy *strategy,
                   const opipe_play_params *params);
/* The same of `plan`: on --cluster, or where none is given on the devices and the link that the
 * plan says. Without --html: nothing. */
int cli_give_page(const cli_options *o, const cli_session *s, const cli_strategy *strategy);

#endif /* CLI_PAGE_H */
