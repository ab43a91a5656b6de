/*
 * calls_program SYMBOL FRAME, both also in CALLS=SYMBOL:FRAME for the constructor of calls.c, which
 * runs before this.
 */
#include "tests/calls/calls.h"

#include <string.h>

int main(int argc, char **argv)
{
    /* the constructor must have run and ended the process */
    return argc == 3 && strcmp(argv[2], "constructor") != 0 ? calls_run(argv[1], argv[2]) : 2;
}
