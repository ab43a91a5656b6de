/*
 * Which driver this build claims to be. Compiled once per variant library, with
 * SIM_BUILD_VERSION set; everything else is the same object code.
 */
#include "sim_config.h"

const int sim_build_version = SIM_BUILD_VERSION;
const int sim_build_limit = SIM_BUILD_VERSION == 13000 ? 13999 : SIM_BUILD_VERSION;

/* The one export a real driver does not have: how a program tells the simulator. */
__attribute__((visibility("default"))) int vcapsim_version(void);
int vcapsim_version(void)
{
    return SIM_BUILD_VERSION;
}
