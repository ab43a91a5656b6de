/*
 * A table of text cells, each column as wide as its widest cell.  Colours are added outside the
 * widths.
 */
#ifndef VRAMCAP_ENFORCER_CLI_TABLE_H
#define VRAMCAP_ENFORCER_CLI_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum vcap_table_colour { VCAP_TABLE_PLAIN, VCAP_TABLE_BAD, VCAP_TABLE_FAINT };

struct vcap_table;

/* columns: names of the columns; a '<' before a name aligns it left.  NULL without memory. */
struct vcap_table *vcap_table_new(const char *const *columns, size_t count);

/* Adds the next cell, row by row.  Text is copied.  Without memory the table prints as failed. */
void vcap_table_add(struct vcap_table *table, const char *text, enum vcap_table_colour colour);

/* Prints it, without blanks at the ends of lines, and frees it.  -ENOMEM if a cell was lost. */
int vcap_table_print(struct vcap_table *table, FILE *to, bool colours);

#endif
