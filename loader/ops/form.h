/* SPDX-License-Identifier: Apache-2.0 */
/* The form of an operator in files: its newest supported schema, and every attribute of its
 * schemas, with the values that the row's rules support.
 *
 * A row states it in one column:
 *
 *   OPI_ATTRS(28, OPI_A(INT, "to", .since = 6), OPI_A(STRING, "round_mode", OPI_TEXTS("up")))
 *   OPI_NO_ATTRS(14)
 *
 * An attribute of a node that the row does not list, or with an unsupported value, is refused by
 * node, attribute and value. One that equals its default has no effect and is never refused, not
 * even under a name misspelt by a letter or two. Names that begin with "__" are notes of the
 * exporter.
 */
#ifndef OPI_FORM_H
#define OPI_FORM_H

#include "loader/graph/graph.h"
#include "loader/graph/opsets.h"

/* opi_attr_rule.honours: the values that the row's rules support. */
enum {
  OPI_HONOURS_ALL = 0, /* every valid value; the rules check it */
  OPI_HONOURS_RANGE,   /* numbers from `low` to `high`, in lists each entry */
  OPI_HONOURS_TEXTS,   /* strings in `texts`, in lists each entry */
  OPI_HONOURS_DEFAULT, /* only the default; if there is none, no value */
  OPI_HONOURS_NOTHING  /* the attribute has no effect: hints, and obsolete ones */
};

typedef struct opi_attr_rule {
  const char *name;      /* a trailing '*' matches every name with that prefix */
  const char *texts;     /* TEXTS: the strings, separated by spaces; the first is the default */
  double low, high;      /* RANGE */
  double preset;         /* default of a number, if has_preset */
  uint16_t kind;         /* OPIPE_ATTR_*, OPI_ATTR_GRAPH */
  uint16_t since, until; /* first and last opset that has it; 0: unbounded */
  uint8_t input; /* input that replaces it after `until`; the attribute is honoured if that input is
                    absent; 0: none */
  uint8_t honours; /* OPI_HONOURS_* */
  uint8_t has_preset;
} opi_attr_rule;

/* One attribute: the suffix of its kind, its name, then any of the macros below. */
#define OPI_A(kind_, ...) \
  { .kind = OPIPE_ATTR_##kind_, .name = __VA_ARGS__ }
#define OPI_A_GRAPH(name_) \
  { .kind = OPI_ATTR_GRAPH, .name = (name_) }
#define OPI_PRESET(value_) .preset = (value_), .has_preset = 1
#define OPI_RANGE(low_, high_) .honours = OPI_HONOURS_RANGE, .low = (low_), .high = (high_)
#define OPI_TEXTS(texts_) .honours = OPI_HONOURS_TEXTS, .texts = texts_
#define OPI_ONLY(value_) .honours = OPI_HONOURS_DEFAULT, OPI_PRESET(value_)
#define OPI_NEVER .honours = OPI_HONOURS_DEFAULT
#define OPI_NO_EFFECT .honours = OPI_HONOURS_NOTHING

/* Attributes that many operators had in the first opsets. */
#define OPI_A_CONSUMED OPI_A(INTS, "consumed_inputs", OPI_NO_EFFECT)
#define OPI_A_BROADCAST \
  OPI_A(INT, "axis", .until = 6), OPI_A(INT, "broadcast", .until = 6, OPI_PRESET(0))

/* opi_op.schema and .attrs */
#define OPI_ATTRS(schema_, ...)                           \
  .schema = (schema_), .attrs = (const opi_attr_rule[]) { \
    __VA_ARGS__, {                                        \
      .name = NULL                                        \
    }                                                     \
  }
#define OPI_NO_ATTRS(schema_)                             \
  .schema = (schema_), .attrs = (const opi_attr_rule[]) { \
    { .name = NULL }                                      \
  }

/* The rule for attribute `name` of kind `kind` in opset `version`: the one with matching versions
 * and kind, else any with that name. NULL: the name is not listed. attrs: a row's, ended by a rule
 * without a name. */
const opi_attr_rule *opi_attr_rule_of(const opi_attr_rule *attrs, const char *name, uint32_t kind,
                                      uint32_t version);
static inline bool opi_attr_in_version(const opi_attr_rule *rule, uint32_t version) {
  return version >= rule->since && (rule->until == 0 || version <= rule->until);
}
/* "INT", "FLOATS", "GRAPH" ...; "?" for other numbers. */
const char *opi_attr_kind_name(uint32_t kind);

/* Checks all attributes of a file's node against its row. Errors: UNSUPPORTED, one is not listed,
 * not in that version, or has an unsupported value; INVALID, one is of another kind. attrs NULL: no
 * check. */
opipe_status opi_check_attrs(const opi_attr_rule *attrs, const opi_node *node, opipe_error *err);

#endif /* OPI_FORM_H */
