/*
 * The host's configuration file, /etc/vramcap/container.conf: lines KEY=VALUE with the names of
 * config.def.  It is the host's word only if nobody in the container could have written it, so owner and
 * permissions decide whether it is read at all, and whatever is wrong with it is an error, never silence.
 */
#ifndef VRAMCAP_ENFORCER_CONF_FILE_H
#define VRAMCAP_ENFORCER_CONF_FILE_H

#include <stddef.h>
#include <stdint.h>

#define VCAP_CONF_PATH "/etc/vramcap/container.conf"
#define VCAP_CONF_BYTES_MAX 8192
#define VCAP_CONF_KEYS_MAX 32

struct vcap_conf {
    char text[VCAP_CONF_BYTES_MAX + 1]; /* cut into strings in place */
    struct {
        const char *key, *value; /* blanks around both taken off */
    } pair[VCAP_CONF_KEYS_MAX];
    uint32_t count;
};

/*
 * Cuts text (length bytes, in conf->text) into pairs.  Blank lines and lines that begin with # say
 * nothing; blanks (space, tab, CR) around key and value are no part of them.  An unknown key, a key
 * twice, a line without =, a NUL are -EINVAL with one phrase in why.  Values are parsed by
 * vcap_config_read, through vcap_conf_get.
 */
int vcap_conf_parse(struct vcap_conf *conf, size_t length, char *why, size_t why_size);

/*
 * Reads the file.  1: *conf is filled; 0: there is none; -EPERM: it is not the host's alone (owner,
 * permissions, of it or of its folder); -EINVAL: its form; another -errno: it cannot be read.  Then one
 * phrase is in why.
 */
int vcap_conf_read(const char *path, struct vcap_conf *conf, char *why, size_t why_size);

/* The value of a key, or NULL.  Fits vcap_config_read: arg is the struct vcap_conf. */
const char *vcap_conf_get(const char *key, void *arg);

#endif
