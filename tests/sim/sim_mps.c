/*
 * MPS, from the client's side: finding the control daemon, reading the two limits, execution
 * affinity.
 *
 * A process is a client if at cuInit a daemon listens in CUDA_MPS_PIPE_DIRECTORY (/tmp/nvidia-mps
 * when not set): the stand-in of mps_control.c, or the one that VRAMCAP_SIM_MPS claims. No daemon
 * there: an ordinary CUDA process with the whole card, and no error. From NVIDIA's MPS guide and
 * its Dynamo guide (driver 615.71.09): the client's limit only constrains the server's further; it
 * counts the context's own storage; an entry for a GPU that the process does not see drops every
 * memory limit of the client, the server's too, and leaves the compute limit; a percentage is rounded
 * down to a count of multiprocessors that there is, an affinity up. This simulator's own claims: an entry
 * that does not parse counts as one for no GPU; the context's storage is proportional to its
 * multiprocessors; an affinity above the client's share is cut to it.
 */
#define _GNU_SOURCE
#include "sim_mps.h"
#include "sim_bounds.h"
#include "sim_cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define STANDARD_PIPE "/tmp/nvidia-mps"
#define ANSWER_MS 2000
#define UNIT_MIB (UINT64_C(1) << 20)

/* What the daemon grants. Limits per card; percent 100: all. */
struct offer {
    int32_t server;
    double percent;
    uint64_t limit[SIM_MAX_CARDS];
    bool failed; /* the server is in state FAULT */
};

static bool client;
static unsigned int client_sms = SIM_SM_COUNT; /* written in cuInit, then constant */
static double server_percent = 100;
static bool per_context; /* the percentage is read again at each context */
static struct sim_bounds bounds;

/* --- the environment -------------------------------------------------------------- */

static char *started_with; /* /proc/self/environ, for VRAMCAP_SIM_MPS_READ=start */
static size_t started_bytes;

static void started_read(void)
{
    enum { ROOM = 1 << 20 };
    int fd = open("/proc/self/environ", O_RDONLY | O_CLOEXEC);

    started_with = calloc(1, ROOM);
    for (ssize_t got = 1; fd >= 0 && started_with && got > 0 && started_bytes < ROOM - 1;) {
        got = read(fd, started_with + started_bytes, ROOM - 1 - started_bytes);
        started_bytes += got > 0 ? (size_t)got : 0;
    }
    if (fd >= 0)
        (void)close(fd);
}

/* A variable of MPS's, as it is now or as it was when the process started. */
static const char *variable(const char *name)
{
    size_t length = strlen(name);

    if (!sim_config.mps_read_at_start)
        return getenv(name);
    if (!started_with)
        started_read();
    for (const char *at = started_with; at && at < started_with + started_bytes;
         at += strlen(at) + 1)
        if (strncmp(at, name, length) == 0 && at[length] == '=')
            return at + length + 1;
    return NULL;
}

/* A percentage above 0 and up to 100; anything else is none, and 100. */
static double percent_of(const char *text)
{
    char *end = NULL;

    if (!text || !*text)
        return 100;
    double value = strtod(text, &end);
    return *end == '\0' && value > 0 && value <= 100 ? value : 100;
}

/* --- pinned memory limits ------------------------------------------------------------ */

/* `4G`, `512M`, `512MB`, `1024K`: digits and a unit, all binary. */
static bool size_of(const char *text, size_t length, uint64_t *bytes)
{
    static const char units[] = "KMG";
    uint64_t value = 0;
    size_t i = 0;

    for (; i < length && text[i] >= '0' && text[i] <= '9'; i++)
        if (__builtin_mul_overflow(value, 10U, &value) ||
            __builtin_add_overflow(value, (uint64_t)(text[i] - '0'), &value))
            return false;
    if (i == 0 || i == length)
        return false;
    const char *unit = strchr(units, text[i] & ~0x20);
    if (!unit || *unit == '\0')
        return false;
    bool rest = i + 1 == length || (i + 2 == length && (text[i + 1] & ~0x20) == 'B');
    unsigned int shift = 10U * (unsigned int)(unit - units + 1);
    *bytes = value << shift;
    return rest && *bytes >> shift == value;
}

static void trim(const char **text, size_t *length)
{
    while (*length > 0 && (**text == ' ' || **text == '\t')) {
        (*text)++;
        (*length)--;
    }
    while (*length > 0 && ((*text)[*length - 1] == ' ' || (*text)[*length - 1] == '\t'))
        (*length)--;
}

/* `0=1G,GPU-...=512MB` into limits per card. False: an entry names no GPU that the process sees.
 * Of two entries for one GPU the last one counts. */
static bool limits_read(const char *list, uint64_t limit[SIM_MAX_CARDS])
{
    for (const char *at = list;;) {
        size_t whole = strcspn(at, ","), name = 0;
        const char *entry = at, *size;
        uint64_t bytes = 0;

        size_t length = whole;
        trim(&entry, &length);
        while (name < length && entry[name] != '=')
            name++;
        if (name == length)
            return false;
        size = entry + name + 1;
        size_t size_length = length - name - 1;
        trim(&entry, &name);
        trim(&size, &size_length);
        int device = sim_device_named(entry, name);
        if (device < 0 || !size_of(size, size_length, &bytes))
            return false;
        limit[sim_device_card[device]] = bytes;
        if (at[whole] == '\0')
            return true;
        at += whole + 1;
    }
}

/* The server's limits, of which entries name cards by the machine's numbers or UUIDs. */
static bool server_limits_read(const char *list, uint64_t limit[SIM_MAX_CARDS])
{
    unsigned int count = sim_device_count, cards[SIM_MAX_CARDS];

    memcpy(cards, sim_device_card, sizeof cards);
    sim_device_count = sim_card_count(sim_state);
    for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
        sim_device_card[c] = c;
    bool good = limits_read(list, limit);
    sim_device_count = count;
    memcpy(sim_device_card, cards, sizeof cards);
    return good;
}

/* --- the daemon ------------------------------------------------------------------- */

static int daemon_connect(const char *pipe_directory)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control", pipe_directory);

    if (length < 0 || (size_t)length >= sizeof address.sun_path)
        return -1;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        (void)close(fd);
        fd = -1;
    }
    return fd;
}

/* All that the daemon says, until it hangs up or dies. -1: nothing in time. */
static ssize_t daemon_hear(int fd, char *text, size_t room)
{
    size_t length = 0;

    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        int rc = poll(&ready, 1, ANSWER_MS);

        if (rc < 0 && errno == EINTR)
            continue;
        if (rc <= 0)
            return -1;
        ssize_t got = read(fd, text + length, room - 1 - length);
        length += got > 0 ? (size_t)got : 0;
        if (got <= 0 || length == room - 1) {
            text[length] = '\0';
            return (ssize_t)length;
        }
    }
}

static void offer_read(char *text, struct offer *offer)
{
    char *save = NULL;

    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        unsigned int card = 0;
        uint64_t bytes = 0;

        (void)sscanf(line, "server %" SCNd32, &offer->server);
        (void)sscanf(line, "percent %lf", &offer->percent);
        if (sscanf(line, "limit %u %" SCNu64, &card, &bytes) == 2 && card < SIM_MAX_CARDS)
            offer->limit[card] = bytes;
    }
}

/* SUCCESS with offer->server 0: there is no daemon. */
static CUresult daemon_ask(const char *pipe_directory, struct offer *offer)
{
    char text[4096];
    int fd = daemon_connect(pipe_directory);

    if (fd < 0)
        return CUDA_SUCCESS;
    int length = snprintf(text, sizeof text, "client %d\n", (int)getpid());
    bool sent = send(fd, text, (size_t)length, MSG_NOSIGNAL) == length;
    (void)shutdown(fd, SHUT_WR);
    ssize_t heard = sent ? daemon_hear(fd, text, sizeof text) : 0;
    (void)close(fd);
    if (heard < 0)
        return CUDA_ERROR_MPS_CONNECTION_FAILED;
    if (heard > 0)
        offer_read(text, offer);
    return CUDA_SUCCESS;
}

/* VRAMCAP_SIM_MPS is the pipe directory of a daemon that needs no process. */
static void claimed_daemon(struct offer *offer)
{
    offer->server = 1;
    offer->percent = percent_of(getenv("VRAMCAP_SIM_MPS_PERCENT"));
    const char *list = getenv("VRAMCAP_SIM_MPS_LIMIT");
    if (list && *list && !server_limits_read(list, offer->limit))
        sim_config.bad = true;
}

/* --- joining ---------------------------------------------------------------------- */

static unsigned int sms_of(double percent)
{
    unsigned int step = sim_config.sm_step;
    unsigned int sms = (unsigned int)(SIM_SM_COUNT * percent / 100.0) / step * step;

    return sms < step ? step : sms;
}

static void limits_take(const struct offer *offer)
{
    const char *list = variable("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    uint64_t limit[SIM_MAX_CARDS];

    for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
        limit[c] = UINT64_MAX;
    if (list && *list && !limits_read(list, limit))
        return; /* bounds.limit stays without any, the server's included */
    for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
        bounds.limit[c] = limit[c] < offer->limit[c] ? limit[c] : offer->limit[c];
}

static void client_begin(const struct offer *offer)
{
    const char *flag = variable("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING");
    const char *connections = variable("CUDA_DEVICE_MAX_CONNECTIONS");

    client = true;
    bounds.role = SIM_MPS_CLIENT;
    bounds.server = offer->server;
    long channels = connections && *connections ? strtol(connections, NULL, 10) : 2;
    bounds.connections = channels < 1 || channels > 32 ? 2 : (uint32_t)channels;
    limits_take(offer);
    server_percent = offer->percent;
    per_context = flag && strcmp(flag, "1") == 0;
    double own = per_context ? 100 : percent_of(variable("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
    client_sms = sms_of(own < server_percent ? own : server_percent);
}

CUresult sim_mps_prepare(void)
{
    const char *pipe_directory = variable("CUDA_MPS_PIPE_DIRECTORY");
    struct offer offer = {.percent = 100};
    CUresult rc = CUDA_SUCCESS;

    int saved = errno; /* of a daemon that is not there, the program learns nothing */
    if (!pipe_directory || !*pipe_directory)
        pipe_directory = STANDARD_PIPE;
    for (unsigned int c = 0; c < SIM_MAX_CARDS; c++)
        bounds.limit[c] = offer.limit[c] = UINT64_MAX;
    sim_cgroup_own(sim_state, bounds.cgroup);
    if (sim_config.mps_pipe && strcmp(sim_config.mps_pipe, pipe_directory) == 0)
        claimed_daemon(&offer);
    else if (!sim_config.bench)
        rc = daemon_ask(pipe_directory, &offer);
    errno = saved;
    if (sim_config.bad)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    if (rc != CUDA_SUCCESS || offer.server == 0)
        return rc;
    if (sim_bounds_server_faulted(sim_state, offer.server))
        return CUDA_ERROR_MPS_SERVER_NOT_READY;
    client_begin(&offer);
    return CUDA_SUCCESS;
}

CUresult sim_mps_join(void)
{
    if (sim_config.bench)
        return CUDA_SUCCESS;
    if (client)
        sim_gate_watch();
    return sim_bounds_set(sim_state, &bounds) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

bool sim_mps_is_client(void)
{
    return client;
}

unsigned int sim_mps_sms(void)
{
    return client_sms;
}

/* --- contexts ---------------------------------------------------------------------- */

unsigned int sim_mps_context_sms(unsigned int asked)
{
    unsigned int step = sim_config.sm_step, sms = client_sms;

    if (client && per_context) {
        double own = percent_of(getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"));
        sms = sms_of(own < server_percent ? own : server_percent);
    }
    if (asked != 0 && asked < sms) {
        asked = (asked + step - 1) / step * step;
        sms = asked < sms ? asked : sms;
    }
    return sms;
}

uint64_t sim_mps_context_bytes(unsigned int sms)
{
    if (!client)
        return sim_config.context_bytes;
    /* whole MiB, at least one of the first multiprocessor's */
    uint64_t mib = sim_config.mps_context_bytes / UNIT_MIB;
    return (mib * sms + SIM_SM_COUNT - 1) / SIM_SM_COUNT * UNIT_MIB;
}

CUresult sim_mps_context_enter(unsigned int card)
{
    struct sim_admission admission = {.clients = sim_config.mps_clients,
                                      .connections = sim_config.mps_connections,
                                      .served = sim_config.mps_pipe != NULL && !client};

    if (sim_config.bench)
        return CUDA_SUCCESS;
    switch (sim_bounds_admit(sim_state, card, admission)) {
    case 0:
        return CUDA_SUCCESS;
    case -EBUSY:
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    case -EUSERS:
        return CUDA_ERROR_MPS_MAX_CLIENTS_REACHED;
    case -ENOSR:
        return CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED;
    default:
        return CUDA_ERROR_UNKNOWN;
    }
}

void sim_mps_context_leave(unsigned int card)
{
    if (!sim_config.bench)
        sim_bounds_leave(sim_state, card);
}
