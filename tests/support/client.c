/*
 * vramcap_client --by=link|dlsym|getproc: a CUDA program on a string.  One command a line on
 * standard input, one answer a line on standard output; an answer begins with the CUresult (a
 * number), "?" for a command that is not understood.  Ends with status 0 at `exit` or end of input.
 *
 *     init                             RESULT
 *     ctx create DEVICE [1|2|3|4]      RESULT                  cuCtxCreate of that ABI (2); now current
 *     ctx destroy [1|2]                RESULT
 *     ctx detach                       RESULT
 *     ctx use NUMBER                   RESULT                  by order of creation, from 0
 *     primary retain DEVICE            RESULT                  now current
 *     primary release DEVICE [1|2]     RESULT
 *     primary reset DEVICE [1|2]       RESULT
 *     alloc SIZE                       RESULT HANDLE           sizes in bytes or with k, m, g
 *     alloc_v1 SIZE                    RESULT HANDLE
 *     managed SIZE                     RESULT HANDLE
 *     pitch WIDTH HEIGHT               RESULT HANDLE PITCH
 *     free HANDLE [v1|v2|async]        RESULT
 *     info [1|2]                       RESULT FREE TOTAL
 *     total DEVICE [1|2]               RESULT TOTAL
 *     sync                             RESULT                  cuStreamSynchronize
 *     fill SIZE [linear|pitch|managed] RESULT COUNT            until refused; the last result
 *     drop                             RESULT COUNT            frees what fill took
 *     threads N SIZE ROUNDS [KIND]     RESULT GRANTED REFUSED  N threads fill and free, ROUNDS
 *                                                              times; first result not 0 or 2
 *     barrier FD                       0                       waits for the end of FD
 *     errno VALUE SIZE                 RESULT ERRNO            of an alloc with errno at VALUE
 *     fork COMMAND [; COMMAND ...]     ANSWERS                 of the child, joined by "; "
 *     spawn IN OUT                     0 PID                   a forked child serves the FIFOs
 *     sleep MILLISECONDS               0
 *     pid                              0 PID
 *     exit
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

#include "tests/support/api.h"

#define WORDS 8
#define CONTEXTS 64
#define HELD 65536

static struct test_api api;
static CUcontext contexts[CONTEXTS];
static unsigned context_count;
static CUdeviceptr held[HELD];
static unsigned held_count;

struct answer {
    char text[4096];
    size_t length;
};

static void say(struct answer *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(struct answer *a, const char *format, ...)
{
    va_list arguments;
    int length;

    va_start(arguments, format);
    length = vsnprintf(a->text + a->length, sizeof(a->text) - a->length, format, arguments);
    va_end(arguments);
    if (length > 0 && a->length + (size_t)length < sizeof(a->text))
        a->length += (size_t)length;
}

static uint64_t number_of(const char *word)
{
    return word == NULL ? 0 : strtoull(word, NULL, 0);
}

static size_t size_of(const char *word)
{
    char *end = NULL;
    size_t size = word == NULL ? 0 : (size_t)strtoull(word, &end, 0);

    if (end == NULL)
        return 0;

    switch (*end) {
    case 'k':
        return size << 10;
    case 'm':
        return size << 20;
    case 'g':
        return size << 30;
    default:
        return size;
    }
}

static bool is(const char *word, const char *what)
{
    return word != NULL && strcmp(word, what) == 0;
}

static int remembered(CUresult result, CUcontext context)
{
    if (result == CUDA_SUCCESS && context_count < CONTEXTS)
        contexts[context_count++] = context;
    return (int)result;
}

static int context_command(char **word)
{
    CUcontext context = NULL;
    CUresult result;

    if (is(word[1], "create") && word[2] != NULL) {
        CUdevice device = atoi(word[2]);

        switch (word[3] == NULL ? 2 : atoi(word[3])) {
        case 1:
            result = api.cuCtxCreate(&context, 0, device);
            break;
        case 3:
            result = api.cuCtxCreate_v3(&context, NULL, 0, 0, device);
            break;
        case 4:
            result = api.cuCtxCreate_v4(&context, NULL, 0, device);
            break;
        default:
            result = api.cuCtxCreate_v2(&context, 0, device);
        }
        return remembered(result, context);
    }
    if (is(word[1], "use") && word[2] != NULL && (unsigned)atoi(word[2]) < context_count)
        return (int)api.cuCtxSetCurrent(contexts[atoi(word[2])]);
    api.cuCtxGetCurrent(&context);
    if (is(word[1], "destroy"))
        return (int)(is(word[2], "1") ? api.cuCtxDestroy(context) : api.cuCtxDestroy_v2(context));
    if (is(word[1], "detach"))
        return (int)api.cuCtxDetach(context);
    return -1;
}

static int primary_command(char **word)
{
    CUdevice device = word[2] == NULL ? 0 : atoi(word[2]);
    bool old = is(word[3], "1");
    CUcontext context = NULL;
    CUresult result;

    if (is(word[1], "retain")) {
        result = api.cuDevicePrimaryCtxRetain(&context, device);
        if (result == CUDA_SUCCESS)
            result = api.cuCtxSetCurrent(context);
        return remembered(result, context);
    }
    if (is(word[1], "release"))
        return (int)(old ? api.cuDevicePrimaryCtxRelease(device)
                         : api.cuDevicePrimaryCtxRelease_v2(device));
    if (is(word[1], "reset"))
        return (int)(old ? api.cuDevicePrimaryCtxReset(device)
                         : api.cuDevicePrimaryCtxReset_v2(device));
    return -1;
}

static CUresult allocate(const char *kind, size_t size, CUdeviceptr *pointer)
{
    size_t pitch;

    if (is(kind, "managed"))
        return api.cuMemAllocManaged(pointer, size, CU_MEM_ATTACH_GLOBAL);
    if (is(kind, "pitch")) /* rows of 4096 bytes: the pitch is the width with every setting of the
                              simulator */
        return api.cuMemAllocPitch_v2(pointer, &pitch, 4096, size / 4096, 4);
    return api.cuMemAlloc_v2(pointer, size);
}

static void fill(struct answer *a, char **word)
{
    CUresult result = CUDA_SUCCESS;
    unsigned count = 0;

    while (held_count < HELD) {
        result = allocate(word[2], size_of(word[1]), &held[held_count]);
        if (result != CUDA_SUCCESS)
            break;
        held_count++;
        count++;
    }
    say(a, "%d %u", (int)result, count);
}

static void drop(struct answer *a)
{
    CUresult result = CUDA_SUCCESS;
    unsigned count = held_count;

    while (held_count > 0) {
        CUresult one = api.cuMemFree_v2(held[--held_count]);

        if (one != CUDA_SUCCESS && result == CUDA_SUCCESS)
            result = one;
    }
    say(a, "%d %u", (int)result, count);
}

struct loop {
    pthread_t thread;
    CUcontext context;
    const char *kind;
    size_t size;
    unsigned rounds, granted, refused;
    CUresult odd;
};

static void *loop_main(void *arg)
{
    enum { MOST = 256 };
    struct loop *loop = arg;
    CUdeviceptr mine[MOST];

    loop->odd = api.cuCtxSetCurrent(loop->context);
    for (unsigned round = 0; round < loop->rounds && loop->odd == CUDA_SUCCESS; round++) {
        unsigned count = 0;

        while (count < MOST) {
            CUresult result = allocate(loop->kind, loop->size, &mine[count]);

            if (result == CUDA_SUCCESS) {
                count++;
                continue;
            }
            if (result == CUDA_ERROR_OUT_OF_MEMORY)
                loop->refused++;
            else
                loop->odd = result;
            break;
        }
        loop->granted += count;
        while (count > 0) {
            CUresult result = api.cuMemFree_v2(mine[--count]);

            if (result != CUDA_SUCCESS)
                loop->odd = result;
        }
    }
    return NULL;
}

static void threads(struct answer *a, char **word)
{
    unsigned count = (unsigned)atoi(word[1]), granted = 0, refused = 0;
    struct loop *loops = calloc(count == 0 ? 1 : count, sizeof(*loops));
    CUresult odd = CUDA_SUCCESS;
    CUcontext context = NULL;

    if (loops == NULL)
        return;
    api.cuCtxGetCurrent(&context);
    for (unsigned i = 0; i < count; i++) {
        loops[i].context = context;
        loops[i].kind = word[4];
        loops[i].size = size_of(word[2]);
        loops[i].rounds = (unsigned)atoi(word[3]);
        if (pthread_create(&loops[i].thread, NULL, loop_main, &loops[i]) != 0)
            abort();
    }
    for (unsigned i = 0; i < count; i++) {
        pthread_join(loops[i].thread, NULL);
        granted += loops[i].granted;
        refused += loops[i].refused;
        if (odd == CUDA_SUCCESS)
            odd = loops[i].odd;
    }
    free(loops);
    say(a, "%d %u %u", (int)odd, granted, refused);
}

static void memory_command(struct answer *a, char **word)
{
    CUdeviceptr pointer = 0;
    CUdeviceptr_v1 old = 0;
    size_t pitch = 0, free_bytes = 0, total = 0;
    unsigned free_old = 0, total_old = 0;
    CUresult result;
    int after;

    if (is(word[0], "alloc_v1")) {
        result = api.cuMemAlloc(&old, (unsigned)size_of(word[1]));
        say(a, "%d 0x%x", (int)result, old);
    } else if (is(word[0], "pitch") && word[2] != NULL) {
        result = api.cuMemAllocPitch_v2(&pointer, &pitch, size_of(word[1]), size_of(word[2]), 4);
        say(a, "%d 0x%llx %zu", (int)result, pointer, pitch);
    } else if (is(word[0], "errno") && word[2] != NULL) {
        errno = atoi(word[1]);
        result = api.cuMemAlloc_v2(&pointer, size_of(word[2]));
        after = errno;
        say(a, "%d %d", (int)result, after);
    } else if (is(word[0], "free")) {
        pointer = (CUdeviceptr)number_of(word[1]);
        if (is(word[2], "v1"))
            result = api.cuMemFree((CUdeviceptr_v1)pointer);
        else
            result = is(word[2], "async") ? api.cuMemFreeAsync(pointer, NULL)
                                          : api.cuMemFree_v2(pointer);
        say(a, "%d", (int)result);
    } else if (is(word[0], "info") && is(word[1], "1")) {
        result = api.cuMemGetInfo(&free_old, &total_old);
        say(a, "%d %u %u", (int)result, free_old, total_old);
    } else if (is(word[0], "info")) {
        result = api.cuMemGetInfo_v2(&free_bytes, &total);
        say(a, "%d %zu %zu", (int)result, free_bytes, total);
    } else if (is(word[0], "total") && is(word[2], "1")) {
        result = api.cuDeviceTotalMem(&total_old, (int)number_of(word[1]));
        say(a, "%d %u", (int)result, total_old);
    } else if (is(word[0], "total")) {
        result = api.cuDeviceTotalMem_v2(&total, (int)number_of(word[1]));
        say(a, "%d %zu", (int)result, total);
    } else {
        result =
            allocate(is(word[0], "managed") ? "managed" : "linear", size_of(word[1]), &pointer);
        say(a, "%d 0x%llx", (int)result, pointer);
    }
}

static bool execute(char *line, struct answer *a);

static void in_child(struct answer *a, char *commands)
{
    int ends[2], status;
    ssize_t got;
    pid_t pid;

    if (pipe(ends) != 0)
        return;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        char *save = NULL;

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        a->length = 0;
        for (char *one = strtok_r(commands, ";", &save); one != NULL;
             one = strtok_r(NULL, ";", &save)) {
            if (a->length > 0)
                say(a, "; ");
            execute(one, a);
        }
        _exit(write(ends[1], a->text, a->length) == (ssize_t)a->length ? 0 : 1);
    }
    close(ends[1]);
    while ((got = read(ends[0], a->text + a->length, sizeof(a->text) - 1 - a->length)) > 0)
        a->length += (size_t)got;
    close(ends[0]);
    if (waitpid(pid, &status, 0) == pid && !(WIFEXITED(status) && WEXITSTATUS(status) == 0))
        say(a, "%s? status 0x%x", a->length > 0 ? "; " : "", (unsigned)status);
}

static void spawn(struct answer *a, char **word)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        int in = open(word[1], O_RDONLY), out = open(word[2], O_WRONLY);

        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0)
            _exit(1);
        say(a, "0 %d", (int)getpid());
        return;
    }
    say(a, "0 %d", (int)pid);
}

static int read_line(char *line, size_t size)
{
    size_t length = 0;
    char byte;

    /* by the byte and unbuffered, so that a forked child inherits nothing half read */
    while (read(0, &byte, 1) == 1) {
        if (byte == '\n') {
            line[length] = 0;
            return 1;
        }
        if (length + 1 < size)
            line[length++] = byte;
    }
    return 0;
}

static bool execute(char *line, struct answer *a)
{
    char *word[WORDS] = {NULL}, *save = NULL, byte;
    unsigned words = 0;
    int rc = -1;

    line += strspn(line, " ");
    if (strncmp(line, "fork ", 5) == 0) {
        in_child(a, line + 5);
        return true;
    }
    for (char *one = strtok_r(line, " ", &save); one != NULL && words < WORDS;
         one = strtok_r(NULL, " ", &save))
        word[words++] = one;
    if (is(word[0], "exit"))
        return false;
    if (is(word[0], "init"))
        rc = (int)api.cuInit(0);
    else if (is(word[0], "sync"))
        rc = (int)api.cuStreamSynchronize(NULL);
    else if (is(word[0], "ctx"))
        rc = context_command(word);
    else if (is(word[0], "primary"))
        rc = primary_command(word);
    else if (is(word[0], "sleep") && words == 2)
        rc = usleep((useconds_t)atoi(word[1]) * 1000);
    else if (is(word[0], "barrier") && words == 2)
        rc = (int)read(atoi(word[1]), &byte, 1);
    if (rc >= 0)
        say(a, "%d", rc);
    else if (is(word[0], "pid"))
        say(a, "0 %d", (int)getpid());
    else if (is(word[0], "fill") && words >= 2)
        fill(a, word);
    else if (is(word[0], "drop"))
        drop(a);
    else if (is(word[0], "threads") && words >= 4)
        threads(a, word);
    else if (is(word[0], "spawn") && words == 3)
        spawn(a, word);
    else if (is(word[0], "info") ||
             (words >= 2 && (is(word[0], "alloc") || is(word[0], "alloc_v1") ||
                             is(word[0], "managed") || is(word[0], "pitch") ||
                             is(word[0], "free") || is(word[0], "total") || is(word[0], "errno"))))
        memory_command(a, word);
    else
        say(a, "?");
    return true;
}

int main(int argc, char **argv)
{
    static struct answer answer;
    char line[1024];

    if (argc != 2 || strncmp(argv[1], "--by=", 5) != 0 || !test_api_bind(&api, argv[1] + 5))
        return 2;
    while (read_line(line, sizeof(line))) {
        answer.length = 0;
        answer.text[0] = 0;
        if (!execute(line, &answer))
            break;
        say(&answer, "\n");
        if (write(1, answer.text, answer.length) != (ssize_t)answer.length)
            return 1;
    }
    return 0;
}
