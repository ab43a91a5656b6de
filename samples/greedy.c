/*
 * A greedy neighbour: takes device memory block by block until it is refused, says how much it got,
 * then sits on it.
 *
 *   greedy [--block MIB] [--hold SECONDS]
 *
 * Ends with 0 when it was refused for lack of memory, 1 on any other error, 2 on wrong usage.
 */
#include "driver.h"

#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"block", required_argument, NULL, 'b'},
        {"hold", required_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    unsigned long block_mib = 256;
    unsigned long hold_s = 0;
    unsigned long got_mib = 0;
    CUresult result;
    int option;

    setvbuf(stdout, NULL, _IOLBF, 0);
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == 'b') {
            block_mib = option_number("greedy", "block", optarg);
        } else if (option == 'h') {
            hold_s = option_number("greedy", "hold", optarg);
        } else {
            fprintf(stderr, "usage: greedy [--block MIB] [--hold SECONDS]\n");
            return 2;
        }
    }
    if (optind < argc || block_mib == 0) {
        fprintf(stderr, "usage: greedy [--block MIB] [--hold SECONDS]\n");
        return 2;
    }

    if (!driver_open("greedy"))
        return 1;
    printf("greedy[%d]: taking blocks of %lu MiB on %s\n", (int)getpid(), block_mib,
           driver.device_name);
    result = driver_start();
    while (result == CUDA_SUCCESS) {
        CUdeviceptr block = 0;

        result = driver.cuMemAlloc(&block, block_mib * MIB);
        if (result == CUDA_SUCCESS)
            got_mib += block_mib;
    }
    printf("greedy[%d]: got %lu MiB, then %s\n", (int)getpid(), got_mib, driver_error_name(result));
    if (result != CUDA_ERROR_OUT_OF_MEMORY)
        return 1;
    while (hold_s > 0)
        hold_s = sleep((unsigned int)hold_s);
    return 0;
}
