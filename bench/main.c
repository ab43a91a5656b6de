/*
 * One row of the table per run: prints its figure (nanoseconds, but for `memory`) and ends.
 *
 *     bench [--count N] ROW [ARGUMENT...]
 *
 * --count: exactly N operations and no clock, for instruction counts under callgrind.  bench/table.py runs
 * each row alternately with and without the library and takes medians; its list of rows is the list of
 * what there is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/driver.h"

int main(int argc, char **argv)
{
    unsigned long fixed = 0;

    if (argc > 2 && strcmp(argv[1], "--count") == 0) {
        fixed = strtoul(argv[2], NULL, 10);
        argv += 2;
        argc -= 2;
    }
    if (argc < 2) {
        fprintf(stderr, "usage: bench [--count N] ROW [ARGUMENT...]\n");
        return 2;
    }
    if (bench_calls(argv[1], argv + 2, fixed) || bench_crowd(argv[1], argv + 2) ||
        bench_start(argv[1], argv + 2))
        return fflush(stdout) == 0 ? 0 : 2;
    fprintf(stderr, "bench: no row %s\n", argv[1]);
    return 2;
}
