/*
 * A table of text cells.  Cells are kept until all widths are known.
 */
#include "enforcer/cli/table.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct cell {
    const char *text; /* owned, but for the head of the table */
    enum vcap_table_colour colour;
};

struct vcap_table {
    const char *const *columns;
    size_t column_count;
    struct cell *cells;
    size_t cell_count, cell_room;
    bool failed;
};

struct vcap_table *vcap_table_new(const char *const *columns, size_t count)
{
    struct vcap_table *t = calloc(1, sizeof *t);
    if (t) {
        t->columns = columns;
        t->column_count = count;
    }
    return t;
}

void vcap_table_add(struct vcap_table *t, const char *text, enum vcap_table_colour colour)
{
    if (t->cell_count == t->cell_room) {
        size_t room = t->cell_room ? t->cell_room * 2 : 64;
        struct cell *grown = reallocarray(t->cells, room, sizeof *grown);
        if (!grown) {
            t->failed = true;
            return;
        }
        t->cells = grown;
        t->cell_room = room;
    }
    struct cell *cell = &t->cells[t->cell_count];
    cell->colour = colour;
    cell->text = strdup(text);
    if (cell->text)
        t->cell_count++;
    else
        t->failed = true;
}

static const char *colour_start(enum vcap_table_colour colour)
{
    return colour == VCAP_TABLE_BAD ? "\033[1;31m" : "\033[2m";
}

static void print_row(const struct vcap_table *t, const struct cell *cells, const size_t *widths,
                      FILE *to, bool colours)
{
    size_t pending = 0; /* blanks owed before the next text, so that none end a line */
    for (size_t c = 0; c < t->column_count; c++) {
        bool left = t->columns[c][0] == '<';
        size_t length = strlen(cells[c].text), pad = widths[c] - length;
        bool coloured = colours && cells[c].colour != VCAP_TABLE_PLAIN && length > 0;
        pending += c > 0 ? 2 : 0;
        pending += left ? 0 : pad;
        if (length > 0) {
            (void)fprintf(to, "%*s%s%s%s", (int)pending, "",
                          coloured ? colour_start(cells[c].colour) : "", cells[c].text,
                          coloured ? "\033[0m" : "");
            pending = 0;
        }
        pending += left ? pad : 0;
    }
    (void)fputc('\n', to);
}

int vcap_table_print(struct vcap_table *t, FILE *to, bool colours)
{
    const size_t n = t->column_count;
    size_t *widths = calloc(n, sizeof *widths);
    struct cell *head = calloc(n, sizeof *head);
    int error = t->failed || !widths || !head ? -ENOMEM : 0;
    for (size_t c = 0; !error && c < n; c++) {
        const char *name = t->columns[c];
        head[c] = (struct cell){(name + (name[0] == '<')), VCAP_TABLE_FAINT};
        widths[c] = strlen(head[c].text);
        for (size_t i = c; i < t->cell_count; i += n)
            if (strlen(t->cells[i].text) > widths[c])
                widths[c] = strlen(t->cells[i].text);
    }
    if (!error) {
        print_row(t, head, widths, to, colours);
        for (size_t i = 0; i + n <= t->cell_count; i += n)
            print_row(t, t->cells + i, widths, to, colours);
    }
    for (size_t i = 0; i < t->cell_count; i++)
        free((void *)(uintptr_t)t->cells[i].text);
    free(t->cells);
    free(widths);
    free(head);
    free(t);
    return error;
}
