/*
 * One stub per GAP entry point: count the call, jump on to the driver's function with every register as
 * it came.  A table entry that is still empty is filled by vcap_gap_first (resolve.c), which warns once.
 * r11 is free at a call by the System V ABI; no entry point here takes more than registers can tell or is
 * variadic.
 */
    .section .bss
    .balign 8
    .globl vcap_gap_target, vcap_gap_calls
    .hidden vcap_gap_target, vcap_gap_calls
    .text
    .set gap, 0

    .macro gap_stub name
    .globl \name, vcap_stub_\name
    .hidden vcap_stub_\name
    .type \name, @function
    .type vcap_stub_\name, @function
    .balign 16
\name:
vcap_stub_\name:
    .cfi_startproc
    endbr64
    lock incq vcap_gap_calls+8*gap(%rip)
    movq vcap_gap_target+8*gap(%rip), %r11
    testq %r11, %r11
    jz 1f
    jmp *%r11
1:  movl $gap, %r11d
    jmp resolve
    .cfi_endproc
    .size \name, .-\name
    .set gap, gap + 1
    .endm

#define GAP(base, since, suffix, lost) gap_stub base##suffix;
#define GAP_STREAM(base, since, suffix, lost) gap_stub base##suffix; gap_stub base##suffix##_ptsz;
#include "preload/cuda_api.def"

    .type resolve, @function
resolve:
    .cfi_startproc
    pushq %rbp
    .cfi_adjust_cfa_offset 8
    .cfi_rel_offset %rbp, 0
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $192, %rsp
    andq $-16, %rsp
    movq %rdi, (%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movups %xmm0, 48(%rsp)
    movups %xmm1, 64(%rsp)
    movups %xmm2, 80(%rsp)
    movups %xmm3, 96(%rsp)
    movups %xmm4, 112(%rsp)
    movups %xmm5, 128(%rsp)
    movups %xmm6, 144(%rsp)
    movups %xmm7, 160(%rsp)
    movl %r11d, %edi
    call vcap_gap_first
    movq %rax, %r11
    movq (%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movups 48(%rsp), %xmm0
    movups 64(%rsp), %xmm1
    movups 80(%rsp), %xmm2
    movups 96(%rsp), %xmm3
    movups 112(%rsp), %xmm4
    movups 128(%rsp), %xmm5
    movups 144(%rsp), %xmm6
    movups 160(%rsp), %xmm7
    leave
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc
    .size resolve, .-resolve

    .section .bss
vcap_gap_target:
    .zero 8*gap
vcap_gap_calls:
    .zero 8*gap
    .section .note.GNU-stack, "", @progbits
