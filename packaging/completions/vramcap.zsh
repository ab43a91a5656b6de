#compdef vramcap
# zsh completion for vramcap; commands and options are those that the installed program's help lists.

local -a commands options
local line

if (( CURRENT == 2 )) || [[ $words[2] == help && CURRENT -eq 3 ]]; then
    commands=(${(f)"$($words[1] --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)  *\(.*\)/\1:\2/p')"})
    _describe -t commands 'vramcap command' commands
    return
fi
if [[ $words[2] == run ]]; then
    local -i at=3
    while (( at < CURRENT )); do
        case $words[at] in
        --) (( at++ )); break ;;
        -m|--memory|-l|--ledger|--library) (( at++ )) ;;
        -*) ;;
        *) break ;;
        esac
        (( at++ ))
    done
    if (( at < CURRENT )) || [[ $words[at-1] == -- || ( $at -eq CURRENT && $PREFIX != -* ) ]]; then
        shift $(( at - 1 )) words
        (( CURRENT -= at - 1 ))
        _normal
        return
    fi
fi
case $words[CURRENT-1] in
-m|--memory|-c|--container|-s|--since) _message value; return ;;
-l|--ledger|--library|--preload-file|-o|--output) _files; return ;;
esac
if [[ $PREFIX == -* ]]; then
    options=(${(f)"$($words[1] help $words[2] 2>/dev/null |
        sed -n 's/^  \(-., \|    \)\(--[a-z][a-z-]*\)[^ ]* *[A-Z]* *\(.*\)/\2:\3/p')"})
    _describe -t options option options
else
    _files
fi
