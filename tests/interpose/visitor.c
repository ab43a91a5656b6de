/*
 * A program that lets tests/interpose/asker.c use the driver in unusual ways; prints what it gave.
 *     visitor plain LIBRARY       dlopen
 *     visitor deepbind LIBRARY    dlopen with RTLD_DEEPBIND
 *     visitor namespace LIBRARY   dlmopen into a namespace of its own
 *     visitor early LIBRARY       from a global constructor, before main
 *     visitor late LIBRARY        from an exit handler
 *     visitor last LIBRARY        from a global destructor
 *     visitor thread LIBRARY      from a thread that goes on while main returns from exit handlers
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *how = "", *library = "";

static int ask(void *handle)
{
    int (*function)(void) =
        handle == NULL ? NULL : (int (*)(void))(uintptr_t)dlsym(handle, "asker_ask");
    int gave = function == NULL ? -3 : function();

    if (handle == NULL)
        fprintf(stderr, "%s\n", dlerror());
    printf("%d\n", gave);
    fflush(stdout);
    return gave < 0;
}

__attribute__((constructor)) static void early(int argc, char **argv)
{
    if (argc != 3)
        return;
    how = argv[1];
    library = argv[2];
    if (strcmp(how, "early") == 0)
        ask(dlopen(library, RTLD_NOW));
}

__attribute__((destructor)) static void last(void)
{
    if (strcmp(how, "last") == 0)
        ask(dlopen(library, RTLD_NOW));
}

static void *in_thread(void *unused)
{
    ask(dlopen(library, RTLD_NOW));
    return unused;
}

static void late(void)
{
    pthread_t thread;

    if (strcmp(how, "late") == 0)
        ask(dlopen(library, RTLD_NOW));
    else if (strcmp(how, "thread") == 0 && pthread_create(&thread, NULL, in_thread, NULL) == 0)
        pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
    (void)argv;
    if (argc != 3)
        return 2;
    if (strcmp(how, "plain") == 0)
        return ask(dlopen(library, RTLD_NOW));
    if (strcmp(how, "deepbind") == 0)
        return ask(dlopen(library, RTLD_NOW | RTLD_DEEPBIND));
    if (strcmp(how, "namespace") == 0)
        return ask(dlmopen(LM_ID_NEWLM, library, RTLD_NOW));
    return atexit(late) == 0 ? 0 : 2;
}
