/*
 * A plugin: loaded RTLD_LOCAL, asks the loader from its own place, and has names of its own that a
 * hook of dlsym must not mistake: a driver name that is not the driver's, and names that only begin
 * like one.
 */
#include <dlfcn.h>

void *plugin_default(const char *name);
void *plugin_next(const char *name);
void *plugin_handle(void *handle, const char *name);
int plugin_private(void);
int cuPluginPrivate(void);
int cuMemAlloc_v2(void);
int curl_easy_init(void);
int cu(void);
int cuddle(void);

void *plugin_default(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

void *plugin_next(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

void *plugin_handle(void *handle, const char *name)
{
    return dlsym(handle, name);
}

int plugin_private(void)
{
    return 1;
}

int cuPluginPrivate(void)
{
    return 4710;
}

int cuMemAlloc_v2(void)
{
    return 4711;
}

int curl_easy_init(void)
{
    return 4712;
}

int cu(void)
{
    return 4713;
}

int cuddle(void)
{
    return 4714;
}
