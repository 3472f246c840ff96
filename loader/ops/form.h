/* SPDX-License-Identifier: Apache-2.0 */
/* The form of an operator in files: the newest schema that was read, and every attribute that its
 * schemas have, with the values that the row's rules honour.
 *
 * A row says it in one column:
 *
 *   OPI_ATTRS(28, OPI_A(INT, "to", .since = 6), OPI_A(STRING, "round_mode", OPI_TEXTS("up")))
 *   OPI_NO_ATTRS(14)
 *
 * A node's attribute that the row does not list, or whose value it does not honour, is refused by
 * node, attribute and value; one that equals its default changes nothing and is never refused, not
 * even under a name that is misspelt by a letter or two.
 * Names that begin with "__" are notes of the program that wrote the file.
 */
#ifndef OPI_FORM_H
#define OPI_FORM_H

#include "loader/graph/graph.h"
#include "loader/graph/opsets.h"

/* opi_attr_rule.honours: the values that the row's rules compute with. */
enum {
  OPI_HONOURS_ALL = 0, /* every value that is valid; the rules check it */
  OPI_HONOURS_RANGE,   /* numbers from `low` to `high`, in lists each entry */
  OPI_HONOURS_TEXTS,   /* texts in `texts`, in lists each entry */
  OPI_HONOURS_DEFAULT, /* the default alone; without one no value */
  OPI_HONOURS_NOTHING  /* it changes no value: hints and what is obsolete */
};

typedef struct opi_attr_rule {
  const char *name;      /* with '*' at its end: every name that begins so */
  const char *texts;     /* TEXTS: the texts, a space between; the default is the first */
  double low, high;      /* RANGE */
  double preset;         /* default of a number, where has_preset */
  uint16_t kind;         /* OPIPE_ATTR_*, OPI_ATTR_GRAPH */
  uint16_t since, until; /* first and last opset that has it; 0: no bound */
  uint8_t input;         /* behind `until` it is this input: honoured where that is absent; 0: no */
  uint8_t honours;       /* OPI_HONOURS_* */
  uint8_t has_preset;
} opi_attr_rule;

/* One attribute: kind by the end of its name, name, then any of what follows. */
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

/* Attributes of the first opsets that many operators had. */
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

/* The rule for attribute `name` of kind `kind` in opset `version`: the one whose versions and kind
 * fit, else one of that name. NULL: none has the name. attrs: a row's, ended by a rule without a
 * name. */
const opi_attr_rule *opi_attr_rule_of(const opi_attr_rule *attrs, const char *name, uint32_t kind,
                                      uint32_t version);
static inline bool opi_attr_in_version(const opi_attr_rule *rule, uint32_t version) {
  return version >= rule->since && (rule->until == 0 || version <= rule->until);
}
/* "INT", "FLOATS", "GRAPH" ...; "?" for none of them. */
const char *opi_attr_kind_name(uint32_t kind);

/* All attributes of a file's node against its row's. OPIPE_E_UNSUPPORTED: one is not listed, not in
 * that version, or has a value that is not honoured; OPIPE_E_INVALID: one is of another kind.
 * attrs NULL: nothing is listed, nothing is checked. */
opipe_status opi_check_attrs(const opi_attr_rule *attrs, const opi_node *node, opipe_error *err);

#endif /* OPI_FORM_H */
