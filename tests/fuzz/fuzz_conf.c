/*
 * libFuzzer: any bytes as /etc/vramcap/container.conf.  What is taken is wholly understood; what is not
 * leaves no pair behind and says which line is wrong.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/conf_file.h"
#include "enforcer/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool holds, const char *what)
{
    if (holds)
        return;
    (void)fprintf(stderr, "wrong: %s\n", what);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct vcap_config config;
    char why[256] = "";
    if (size > VCAP_CONF_BYTES_MAX)
        return 0;
    struct vcap_conf *conf =
        malloc(sizeof *conf); /* fresh: a read beyond what was written is seen */
    if (!conf)
        return 0;
    memcpy(conf->text, data, size);
    conf->text[size] = '\0';
    if (vcap_conf_parse(conf, size, why, sizeof why) != 0) {
        must(conf->count == 0 && *why, "a file that does not parse");
    } else {
        must(conf->count <= VCAP_CONF_KEYS_MAX, "the number of keys");
        for (uint32_t i = 0; i < conf->count; i++) {
            const char *value = conf->pair[i].value;
            size_t length = strlen(value);
            must(strncmp(conf->pair[i].key, "VRAMCAP_", 8) == 0, "a key");
            must(length == 0 || (value[0] != ' ' && value[length - 1] != ' '), "blanks");
            must(vcap_conf_get(conf->pair[i].key, conf) == value, "a key that is there twice");
        }
        int rc = vcap_config_read(&config, vcap_conf_get, conf, why, sizeof why);
        must(rc == 0 || *why, "the line about an error");
    }
    free(conf);
    return 0;
}
