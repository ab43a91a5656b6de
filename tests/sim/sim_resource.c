/*
 * What a context holds besides linear memory and streams: arrays, mipmaps, external memory, opened
 * IPC memory. A record has a struct sim_resource as its first member, and ends by its own destroy
 * call or with the context.
 */
#include "sim_internal.h"

void sim_resource_add(struct sim_context *context, struct sim_resource *resource,
                      void (*end)(struct sim_resource *))
{
    *resource = (struct sim_resource){.context = context, .next = context->resources, .end = end};
    if (context->resources)
        context->resources->previous = resource;
    context->resources = resource;
}

void sim_resource_end(struct sim_resource *resource)
{
    if (resource->previous)
        resource->previous->next = resource->next;
    else
        resource->context->resources = resource->next;
    if (resource->next)
        resource->next->previous = resource->previous;
    resource->end(resource);
}

void sim_resources_clear(struct sim_context *context)
{
    while (context->resources)
        sim_resource_end(context->resources);
}
