/*
 * A small library to be loaded and unloaded.
 */
int hook_leaf(void);

int hook_leaf(void)
{
    return 1;
}
