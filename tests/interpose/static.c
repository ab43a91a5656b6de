/* A statically linked program: the loader never runs, nothing is preloaded. */
#include <stdio.h>

int main(void)
{
    return puts("static") < 0;
}
