#!/bin/bash
# The completions offer what the tool offers:  check_completions.sh TOOL VRAMCAP.BASH VRAMCAP.ZSH
set -u
tool=$1
failures=0

complain()
{
    echo "$*"
    failures=$((failures + 1))
}

# shellcheck source=/dev/null
. "$2"

offered() # WORD...: what is offered for the last word, sorted, on one line
{
    COMP_WORDS=("$tool" "$@")
    COMP_CWORD=$#
    COMPREPLY=()
    _vramcap
    printf '%s\n' "${COMPREPLY[@]}" | sort -u | tr '\n' ' '
}

commands=$("$tool" --help | sed -n 's/^  \([a-z]*\)  .*/\1/p')
for command in $commands; do
    [[ " $(offered '')" == *" $command "* ]] || complain "command $command is not offered"
    [ "$command" = help ] && continue
    [[ " $(offered help '')" == *" $command "* ]] || complain "help $command is not offered"
    wanted=$("$tool" help "$command" | grep -o -e '--[a-z][a-z-]*' | sort -u | tr '\n' ' ')
    [ "$(offered "$command" --)" = "$wanted" ] ||
        complain "$command: offered '$(offered "$command" --)', its options are '$wanted'"
done
[ "$(offered d)" = "dump " ] || complain "'d' offers '$(offered d)'"
cd / || exit 2
[[ " $(offered dump et)" == *" etc "* ]] || complain "dump offers no files"
[ "$(offered run --memory '')" = " " ] || complain "--memory offers '$(offered run --memory '')'"
[[ " $(offered run --memory 4096 -- bas)" == *" bash "* ]] || complain "run offers no commands behind --"
[[ " $(offered run bas)" == *" bash "* ]] || complain "run offers no commands"
if command -v zsh >/dev/null; then
    zsh -n "$3" || complain "zsh cannot read $3"
fi
[ "$failures" -eq 0 ]
