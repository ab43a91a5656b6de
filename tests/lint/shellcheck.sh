#!/bin/sh
# Runs shellcheck over every file with a shell's interpreter line:  shellcheck.sh ROOT
set -u
cd "$1" || exit 2
command -v shellcheck >/dev/null || {
    echo "skipped: no shellcheck"
    exit 77
}
find . -path ./.git -prune -o -path './build*' -prune -o -type f -size -200k -print |
    while IFS= read -r file; do
        case $(head -n 1 "$file" 2>/dev/null | tr -d '\0') in
        '#!'*/sh | '#!'*/sh\ * | '#!'*bash*) printf '%s\n' "$file" ;;
        esac
    done | xargs shellcheck
