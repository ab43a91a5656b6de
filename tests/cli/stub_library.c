/*
 * Stands in for libvramcap.so in tests of `vramcap run`: says that it was loaded.
 */
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void say(void)
{
    if (getenv("STUB_SAYS") && write(STDERR_FILENO, "stub loaded\n", 12) < 0)
        _exit(98);
}
