/*
 * The terminal of `vramcap top`: its modes, its size, keys and signals, and giving it back as it was.
 */
#ifndef VRAMCAP_ENFORCER_CLI_TERMINAL_H
#define VRAMCAP_ENFORCER_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>

/* May it be drawn on?  stdout is a terminal that knows the usual sequences. */
bool vcap_terminal_usable(void);

/*
 * Takes it: alternate screen, no cursor, keys at once and without echo; SIGINT, SIGTERM, SIGHUP and
 * SIGQUIT end the loop, SIGTSTP gives the terminal back until SIGCONT.  0 or -errno.
 */
int vcap_terminal_take(void);

/* Gives it back; harmless if it was not taken. */
void vcap_terminal_give_back(void);

/* Columns and rows; 80 and 24 if nobody knows.  COLUMNS and LINES are for what is no terminal. */
void vcap_terminal_size(unsigned *columns, unsigned *rows);

enum vcap_terminal_event { VCAP_TERMINAL_TIME, VCAP_TERMINAL_REDRAW, VCAP_TERMINAL_QUIT };

/* Waits for the time to pass, for `q`, a signal or another size. */
enum vcap_terminal_event vcap_terminal_wait(long milliseconds);

/*
 * Draws text over what is there: its lines cut at the columns (colour sequences have no width), at
 * most rows of them, no scrolling.  False: nobody takes it any more.
 */
bool vcap_terminal_draw(const char *text, unsigned columns, unsigned rows);

#endif
