/*
 * A libcuda.so.1 that only remembers how it was called: GAP entry points are one stub for all
 * signatures, so any of them may stand for a function of many arguments.  It has names that no table knows.
 */
#include <stddef.h>
#include <string.h>

struct seen {
    unsigned calls;
    unsigned long whole[10];
    double real[9];
};

int cuInit(unsigned flags);
int cuCtxGetCurrent(void **context);
int cuCtxGetDevice(int *device);
const struct seen *args_seen(void);
long cuEGLStreamConsumerAcquireFrame(unsigned long a, unsigned long b, unsigned long c,
                                     unsigned long d, unsigned long e, unsigned long f,
                                     unsigned long g, unsigned long h, unsigned long i,
                                     unsigned long j, double k, double l, double m, double n,
                                     double o, double p, double q, double r, double s);
unsigned long cuCheckpointProcessRestore(unsigned long a, unsigned long b, unsigned long c,
                                         unsigned long d);

int cuMemAllocSomewhere(unsigned long a);
int cuMemAlloc_v9(unsigned long a);
int cuMemcpySideways(unsigned long a);

static struct seen seen;

int cuMemAllocSomewhere(unsigned long a)
{
    return (int)a + 1;
}

int cuMemAlloc_v9(unsigned long a)
{
    return (int)a + 9;
}

int cuMemcpySideways(unsigned long a)
{
    return (int)a + 2;
}

int cuInit(unsigned flags)
{
    return flags == 0 ? 0 : 1;
}

int cuCtxGetCurrent(void **context)
{
    *context = NULL;
    return 0;
}

int cuCtxGetDevice(int *device)
{
    *device = 0;
    return 0;
}

const struct seen *args_seen(void)
{
    return &seen;
}

long cuEGLStreamConsumerAcquireFrame(unsigned long a, unsigned long b, unsigned long c,
                                     unsigned long d, unsigned long e, unsigned long f,
                                     unsigned long g, unsigned long h, unsigned long i,
                                     unsigned long j, double k, double l, double m, double n,
                                     double o, double p, double q, double r, double s)
{
    const unsigned long whole[] = {a, b, c, d, e, f, g, h, i, j};
    const double real[] = {k, l, m, n, o, p, q, r, s};

    seen.calls++;
    memcpy(seen.whole, whole, sizeof(whole));
    memcpy(seen.real, real, sizeof(real));
    return -4242424242;
}

unsigned long cuCheckpointProcessRestore(unsigned long a, unsigned long b, unsigned long c,
                                         unsigned long d)
{
    const unsigned long whole[] = {a, b, c, d};

    seen.calls++;
    memcpy(seen.whole, whole, sizeof(whole));
    return 0xfedcba9876543210;
}
