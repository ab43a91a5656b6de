/*
 * VRAMCAP_SIM_BENCH: allocations of SIM_BENCH_BYTES at next to no cost, so that what is
 * measured is what stands in front of the driver.  A thread keeps a stack of the
 * addresses that it freed, whoever allocated them, and hands out the last one first;
 * when that is empty it cuts a run off a reservation of address space.  No lock, no
 * bytes behind the addresses, no accounting, nothing ends with a context: right for a
 * clock, wrong about everything else.
 */
#define _GNU_SOURCE
#include "sim_bench.h"

#include "sim_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define WINDOW_BYTES (UINT64_C(16) << 30)
#define RUN 256U

struct bench_stack {
    CUdeviceptr *address;
    size_t count, capacity;
};

static uint64_t window, window_end; /* written under sim_lock, window last; 0 = not there */
static uint64_t window_used;        /* fetch-and-add by whoever cuts a run off */
static __thread SIM_TLS struct bench_stack stack;

static bool push(CUdeviceptr address)
{
    if (stack.count == stack.capacity) {
        size_t more = stack.capacity == 0 ? 2 * RUN : 2 * stack.capacity;
        CUdeviceptr *grown = realloc(stack.address, more * sizeof *grown);

        if (!grown)
            return false;
        stack.address = grown;
        stack.capacity = more;
    }
    stack.address[stack.count++] = address;
    return true;
}

static uint64_t window_open(void)
{
    uint64_t base = __atomic_load_n(&window, __ATOMIC_ACQUIRE);

    if (base != 0)
        return base;
    sim_lock_take();
    base = window;
    if (base == 0) {
        void *map =
            mmap(NULL, WINDOW_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (map != MAP_FAILED) {
            base = (uintptr_t)map;
            window_end = base + WINDOW_BYTES;
            __atomic_store_n(&window, base, __ATOMIC_RELEASE);
        }
    }
    sim_lock_drop();
    return base;
}

static bool cut_run(void)
{
    uint64_t base = window_open(), at = 0;

    if (base == 0)
        return false;
    at = __atomic_fetch_add(&window_used, RUN * SIM_BENCH_BYTES, __ATOMIC_RELAXED);
    if (at + RUN * SIM_BENCH_BYTES > WINDOW_BYTES)
        return false;
    for (unsigned int i = RUN; i-- > 0;)
        if (!push(base + at + i * SIM_BENCH_BYTES))
            return stack.count > 0;
    return true;
}

bool sim_bench_take(CUdeviceptr *address)
{
    if (stack.count == 0 && !cut_run())
        return false;
    *address = stack.address[--stack.count];
    return true;
}

bool sim_bench_give(CUdeviceptr address)
{
    uint64_t base = __atomic_load_n(&window, __ATOMIC_ACQUIRE);

    return base != 0 && address >= base && address < window_end && push(address);
}
