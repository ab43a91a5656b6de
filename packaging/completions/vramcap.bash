# bash completion for vramcap. Commands and options come from `vramcap --help` and `vramcap help COMMAND`,
# so that they are those of the program that is installed.                             -*- shell-script -*-

_vramcap()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}
    local tool=${COMP_WORDS[0]} command=${COMP_WORDS[1]-} i words
    COMPREPLY=()

    if ((COMP_CWORD == 1)); then
        words=$("$tool" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
        mapfile -t COMPREPLY < <(compgen -W "$words --help --version" -- "$cur")
        return
    fi
    if [[ $command == help ]]; then
        words=$("$tool" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  .*/\1/p')
        ((COMP_CWORD == 2)) && mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
        return
    fi
    if [[ $command == run ]]; then # behind the options stands a command of the user's own
        for ((i = 2; i < COMP_CWORD; i++)); do
            case ${COMP_WORDS[i]} in
            --)
                ((i++))
                break
                ;;
            -m | --memory | -l | --ledger | --library) ((i++)) ;;
            -*) ;;
            *) break ;;
            esac
        done
        if ((i < COMP_CWORD)) || [[ ${COMP_WORDS[i - 1]} == -- ]] || ((i == COMP_CWORD)) && [[ $cur != -* ]]; then
            if declare -F _command_offset >/dev/null; then
                _command_offset "$i"
            else
                mapfile -t COMPREPLY < <(compgen -c -- "$cur")
            fi
            return
        fi
    fi
    case $prev in
    -m | --memory | -c | --container | -s | --since) return ;;
    -l | --ledger | --library | --preload-file | -o | --output)
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
        return
        ;;
    esac
    if [[ $cur == -* ]]; then
        words=$("$tool" help "$command" 2>/dev/null | grep -o -e '--[a-z][a-z-]*' | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")
    else
        compopt -o filenames 2>/dev/null
        mapfile -t COMPREPLY < <(compgen -f -- "$cur")
    fi
}
complete -F _vramcap vramcap
