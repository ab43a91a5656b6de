#!/bin/sh
# Stands in for nvidia-cuda-mps-control: does what the file `mode` in the pipe directory says.
# Every call appends a line to `calls` there.
read -r command
echo "$command preload=${LD_PRELOAD-none}" >>"$CUDA_MPS_PIPE_DIRECTORY/calls"
read -r mode <"$CUDA_MPS_PIPE_DIRECTORY/mode"
case $mode in
up) printf '4711\n4712\n' ;;
empty) ;;
hang) sleep 1000 ;;
stubborn) # ignores what can be ignored, and has a child that does too
    trap '' TERM INT HUP
    (sleep 1000) &
    echo "$$ $!" >"$CUDA_MPS_PIPE_DIRECTORY/pids"
    while :; do sleep 1000; done
    ;;
nobody)
    echo 'Cannot find MPS control daemon process'
    exit "${FAKE_STATUS:-1}"
    ;;
polite) echo 'Cannot find MPS control daemon process' ;; # and status 0
flood) while :; do echo 4711; done ;;
crash) kill -SEGV $$ ;;
flaky) # answers every third call
    n=$(wc -l <"$CUDA_MPS_PIPE_DIRECTORY/calls")
    [ $((n % 3)) -eq 0 ] && exit 0
    exit 1
    ;;
esac
