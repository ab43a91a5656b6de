#!/bin/sh
# Each of the general lint tools, as it is called here, goes red on a tree with a fault that it must
# find, and is green without:  tools_test.sh ROOT
set -u
root=$(cd "$1" && pwd) || exit 2
lint=$root/tests/lint
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
failed=0
skipped=0

expect() # NAME WANTED STATUS
{
    if [ "$3" -eq 77 ]; then
        echo "skipped: $1"
        skipped=1
    elif [ "$2" = red ] && [ "$3" -eq 0 ] || [ "$2" = green ] && [ "$3" -ne 0 ]; then
        echo "$1 should have been $2: status $3"
        failed=1
    fi
}

tree() # a fresh tree with one good file of each kind
{
    rm -rf "$work/tree"
    mkdir -p "$work/tree/samples" "$work/tree/b"
    cp "$root/.clang-format" "$root/.clang-tidy" "$work/tree"
    printf 'int twice(int n);\n\nint twice(int n)\n{\n    return 2 * n;\n}\n' >"$work/tree/samples/a.c"
    # shellcheck disable=SC2016 # the text of a script
    printf '#!/bin/sh\necho "$1"\n' >"$work/tree/samples/a.sh"
    printf '[{"directory": "%s", "file": "%s", "command": "cc -std=gnu11 -c a.c"}]\n' "$work/tree/samples" \
        "$work/tree/samples/a.c" >"$work/tree/b/compile_commands.json"
}

all() # WANTED TOOL: runs it over the tree
{
    case $2 in
    format | shellcheck) sh "$lint/$2.sh" "$work/tree" ;;
    cppcheck) sh "$lint/cppcheck.sh" "$work/tree" "$work/tree/b" ;;
    tidy) python3 -B "$lint/tidy.py" "$work/tree" "$work/tree/b" 1 ;;
    esac >"$work/log" 2>&1
    expect "$2" "$1" $?
}

fault() # TOOL: text that it must find fault with
{
    case $1 in
    format) echo 'int  b ;' ;;
    shellcheck) printf 'rm $%s\n' undefined ;;
    cppcheck) printf '\nint past(void);\nint past(void)\n{\n    int a[2] = {0, 1};\n    return a[2];\n}\n' ;;
    tidy) printf '\nint same(int n);\nint same(int n)\n{\n    if (n)\n        return 1;\n    else\n        return 1;\n}\n' ;;
    esac
}

for tool in format shellcheck cppcheck tidy; do
    tree
    all green "$tool"
    bad=$work/tree/samples/a.c
    [ "$tool" != shellcheck ] || bad=$work/tree/samples/a.sh
    fault "$tool" >>"$bad"
    all red "$tool"
done
[ "$failed" -eq 0 ] || exit 1
[ "$skipped" -eq 0 ] || exit 77
