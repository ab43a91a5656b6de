/*
 * `vramcap report`: the four acceptance questions over one or many ledgers (agent/report.h).
 */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "enforcer/agent/report.h"
#include "enforcer/ceiling.h"
#include "enforcer/cli/command.h"
#include "enforcer/cli/ledger_set.h"
#include "enforcer/config.h"

enum { OPTION_JSON, OPTION_FIT, OPTION_CARD, OPTION_FOLDER };

static const struct vcap_option options[] = {
    [OPTION_JSON] = {"json", 'j', NULL, false, "as JSON, in bytes; unknown is null"},
    [OPTION_FIT] = {"fit", 'f', "MIB", false,
                    "does one more container of that ceiling fit? exit status 1 if\n"
                    "every GPU says no or unknown"},
    [OPTION_CARD] = {"card", 'c', "UUID=MIB", false,
                     "the size of a card, where the ledgers do not know it or are wrong"},
    [OPTION_FOLDER] = {"ledger-dir", 'd', "DIR", false, "all ledgers of a folder"},
    {0},
};

struct wish {
    bool json;
    uint64_t more_bytes;
    const char *folder;
    struct vcap_report_card cards[VCAP_CONFIG_ENTRIES_MAX];
    uint32_t card_count;
};

static int take_cards(const char *value, struct wish *wish)
{
    struct vcap_entries entries;
    char why[200];

    if (vcap_config_parse_entries(value, false, &entries, why, sizeof why) != 0)
        return vcap_command_fail("report: --card '%s': %s", value, why);
    for (uint32_t i = 0; i < entries.count; i++) {
        const struct vcap_entry *e = &entries.entry[i];
        if (e->kind != VCAP_ENTRY_UUID)
            return vcap_command_fail("report: --card wants GPU-<uuid>=MIB, got '%s'", value);
        if (wish->card_count == VCAP_CONFIG_ENTRIES_MAX)
            return vcap_command_fail("report: more than %d cards", VCAP_CONFIG_ENTRIES_MAX);
        struct vcap_report_card *card = &wish->cards[wish->card_count++];
        (void)snprintf(card->uuid, sizeof card->uuid, "%s", e->uuid);
        for (char *c = card->uuid + 4; *c; c++) /* ledgers write them in lower case */
            if (*c >= 'A' && *c <= 'F')
                *c = (char)(*c - 'A' + 'a');
        card->card_bytes = e->bytes;
    }
    return 0;
}

static int take(int option, const char *value, void *state)
{
    struct wish *wish = state;
    switch (option) {
    case OPTION_JSON:
        wish->json = true;
        return 0;
    case OPTION_FIT:
        if (vcap_config_parse_size(value, strlen(value), &wish->more_bytes) != 0)
            return vcap_command_fail("report: --fit wants a size such as 4096 or 4Gi, got '%s'",
                                     value);
        return 0;
    case OPTION_CARD:
        return take_cards(value, wish);
    default:
        wish->folder = value;
        return 0;
    }
}

static int print_json(const struct vcap_report *report)
{
    json_t *json = vcap_report_json(report);
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    int status = text ? VCAP_EXIT_DONE : vcap_command_fail("out of memory");
    if (text)
        (void)puts(text);
    free(text);
    json_decref(json);
    return status;
}

/* A finding is what a script should stop at: a ledger not to be trusted, no room. */
static int judge(const struct vcap_report *report)
{
    bool room = report->more_bytes == VCAP_UNKNOWN;
    for (uint32_t i = 0; i < report->gpu_count; i++)
        room = room || report->gpus[i].one_more == VCAP_ANSWER_YES ||
               report->gpus[i].one_more == VCAP_ANSWER_CONDITIONAL;
    return report->untrusted > 0 || !room ? VCAP_EXIT_FINDING : VCAP_EXIT_DONE;
}

static int show(const struct vcap_ledger_set *set, const struct wish *wish)
{
    struct vcap_report report;
    struct vcap_report_source *sources = vcap_ledger_set_sources(set);
    int status;

    if (!sources || vcap_report_make(&report, sources, (uint32_t)set->count, wish->cards,
                                     wish->card_count, wish->more_bytes) != 0) {
        free(sources);
        return vcap_command_fail("out of memory");
    }
    if (wish->json)
        status = print_json(&report);
    else {
        vcap_report_text(&report, stdout);
        status = VCAP_EXIT_DONE;
    }
    if (status == VCAP_EXIT_DONE)
        status = judge(&report);
    vcap_report_free(&report);
    free(sources);
    return status;
}

static int run(int argc, char **argv)
{
    struct wish wish = {.more_bytes = VCAP_UNKNOWN};
    struct vcap_ledger_set set;
    int first;
    int status = vcap_command_parse(&vcap_command_report, argc, argv, take, &wish, &first);
    if (status >= 0)
        return status;
    status = vcap_ledger_set_choose("report", wish.folder, argc, argv, first, &set);
    if (status)
        return status;
    status = vcap_ledger_set_complain("report", &set, vcap_ledger_set_read(&set));
    if (status == 0)
        status = show(&set, &wish);
    vcap_ledger_set_free(&set);
    return status;
}

const struct vcap_command vcap_command_report = {
    .name = "report",
    .summary = "does it fit, can more be packed; what of latency and boundary is not shown",
    .operands = "[LEDGER]...",
    .details =
        "Without LEDGER and --ledger-dir: VRAMCAP_LEDGER, else all of /run/vramcap, else all\n"
        "ledgers of `vramcap run` in use.  Latency and boundary are never answered from amounts\n"
        "of memory: for them it names the mechanism and what was not measured.",
    .options = options,
    .run = run,
};
