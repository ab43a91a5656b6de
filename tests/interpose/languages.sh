#!/bin/sh
# Language runtimes under a ceiling:  languages.sh TOOL SIM-FOLDER ASKER.C
#
# Python (ctypes, and workers of multiprocessing by fork and by spawn), node (an add-on, in the main thread and in a worker),
# Java (JNI) and Go (cgo), each as this machine has it, asks the driver for 512 + 512 + 1 MiB under a
# ceiling of 1024: the last is refused. A runtime that is missing is said and makes the status 77.
set -u

[ $# -eq 3 ] || {
    echo "usage: languages.sh TOOL SIM-FOLDER ASKER.C" >&2
    exit 2
}
tool=$1
sim=$2
asker=$3
tmp=$(mktemp -d "${TMPDIR:-/tmp}/vramcap-languages.XXXXXX") || exit 2
trap 'rm -rf "$tmp"' EXIT
trap 'exit 1' HUP INT TERM
failures=0
left=

gcc -shared -fPIC -o "$tmp/libasker.so" "$asker" -ldl || exit 2

# A program's standard output must be WANTED, and the refusal be said as often as it happened.
held() # NAME WANTED COMMAND...
{
    name=$1
    wanted=$2
    shift 2
    rm -f "$tmp/ledger" "$tmp/card"
    got=$(LD_LIBRARY_PATH="$sim:$tmp" VRAMCAP_SIM_STATE="$tmp/card" VRAMCAP_SIM_CARDS=8192 \
        "$tool" run --memory 1024 --ledger "$tmp/ledger" -- "$@" 2>"$tmp/err" </dev/null | tr '\n' ' ')
    if [ "$got" = "$wanted " ] && grep -q '^vramcap: refused cuMemAlloc_v2 of 1.0 MiB' "$tmp/err"; then
        echo "$name: held"
    else
        echo "$name: printed '$got', not '$wanted'"
        tail -n 8 "$tmp/err"
        failures=$((failures + 1))
    fi
}

missing()
{
    echo "$1: not here"
    left="$left $1"
}

if command -v python3 >/dev/null; then
    held python 2 python3 -c "
import ctypes
print(ctypes.CDLL('$tmp/libasker.so').asker_ask())"
    cat >"$tmp/workers.py" <<'END'
import ctypes, multiprocessing, sys
def ask(library):
    return ctypes.CDLL(library).asker_ask()
if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(1) as pool:
        print(pool.apply(ask, (sys.argv[2],)))
END
    for method in fork spawn; do
        held "python, a worker by $method" 2 python3 "$tmp/workers.py" "$method" "$tmp/libasker.so"
    done
else
    missing python
fi

include=$(dirname "$(find /usr/include/node* /usr/local/include/node* -name node_api.h 2>/dev/null | head -n 1)")
if command -v node >/dev/null && [ -e "$include/node_api.h" ]; then
    cat >"$tmp/addon.c" <<'END'
#include <node_api.h>
int asker_ask(void);
static napi_value ask(napi_env env, napi_callback_info info)
{
    napi_value value;
    (void)info;
    napi_create_int32(env, asker_ask(), &value);
    return value;
}
NAPI_MODULE_INIT()
{
    napi_value function;
    napi_create_function(env, "ask", NAPI_AUTO_LENGTH, ask, NULL, &function);
    napi_set_named_property(env, exports, "ask", function);
    return exports;
}
END
    gcc -shared -fPIC -I"$include" -DNODE_GYP_MODULE_NAME=addon -o "$tmp/addon.node" "$tmp/addon.c" \
        -L"$tmp" -lasker || exit 2
    held node 2 node -e "console.log(require('$tmp/addon.node').ask())"
    held 'node, a worker' 2 node -e "
new (require('worker_threads').Worker)('console.log(require(\"$tmp/addon.node\").ask())', {eval: true})"
else
    missing node
fi

java_home=$(readlink -f "$(command -v javac)" 2>/dev/null | sed 's,/bin/javac$,,')
if [ -e "$java_home/include/jni.h" ]; then
    mkdir "$tmp/java"
    cat >"$tmp/java/Ask.java" <<'END'
public class Ask {
    static native int ask();
    public static void main(String[] arguments) {
        System.load(arguments[0]);
        System.out.println(ask());
    }
}
END
    cat >"$tmp/jni.c" <<'END'
#include <jni.h>
int asker_ask(void);
JNIEXPORT jint JNICALL Java_Ask_ask(JNIEnv *env, jclass class)
{
    (void)env, (void)class;
    return asker_ask();
}
END
    gcc -shared -fPIC -I"$java_home/include" -I"$java_home/include/linux" -o "$tmp/libjni.so" "$tmp/jni.c" \
        -L"$tmp" -lasker && "$java_home/bin/javac" -d "$tmp/java" "$tmp/java/Ask.java" || exit 2
    held java 2 "$java_home/bin/java" -Xmx64m -cp "$tmp/java" Ask "$tmp/libjni.so"
else
    missing java
fi

if command -v go >/dev/null; then
    mkdir "$tmp/go"
    cp "$asker" "$tmp/go/asker.c"
    cat >"$tmp/go/main.go" <<'END'
package main

// #cgo LDFLAGS: -ldl
// int asker_ask(void);
import "C"
import "fmt"

func main() {
	answer := make(chan int)
	go func() { answer <- int(C.asker_ask()) }()
	fmt.Println(<-answer)
}
END
    printf 'module ask\n\ngo 1.19\n' >"$tmp/go/go.mod"
    if (cd "$tmp/go" && GOFLAGS=-mod=mod GOTOOLCHAIN=local GOCACHE="$tmp/go-cache" go build -o ask . ) >"$tmp/log" 2>&1; then
        held go 2 "$tmp/go/ask"
    else
        tail -n 5 "$tmp/log"
        failures=$((failures + 1))
    fi
else
    missing go
fi

[ "$failures" -eq 0 ] || exit 1
[ -z "$left" ] || {
    echo "skipped:$left"
    exit 77
}
