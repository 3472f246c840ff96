/* SPDX-License-Identifier: Apache-2.0 */
/* Pages of plans. */
#ifndef CLI_PAGE_H
#define CLI_PAGE_H

#include "planning.h"

bool cli_ends_in(const char *path, const char *ending); /* path may be NULL */
/* Form by the end of the file name: OPIPE_PLAY_HTML, _SVG, else _TRACE. */
uint32_t cli_play_form(const char *path);
/* Tests, before anything is computed, whether --html and --trace can be written. */
int cli_try_pages(const cli_options *o);

/* Plays the plan's file, the plan, or without both the strategy. */
opipe_status cli_play_it(const cli_session *s, const cli_strategy *strategy,
                         const opipe_play_params *params, uint32_t format, opipe_write_fn write,
                         void *ctx, opipe_error *err);
/* --html: plays the plan, or without one the strategy, by `params` (title and answer are set here).
 * strategy->api NULL: no planner was asked. */
int cli_write_page(const cli_options *o, const cli_session *s, const cli_strategy *strategy,
                   const opipe_play_params *params);
/* The same for `plan`: on --cluster, or else on the plan's own devices and link. Without --html:
 * nothing. */
int cli_give_page(const cli_options *o, const cli_session *s, const cli_strategy *strategy);

#endif /* CLI_PAGE_H */
