/* The same as gap_x86_64.S for AArch64: see there.  x16 and x17 are free between functions, x9 to x15
 * hold no arguments. */
    .section .bss
    .balign 8
    .globl vcap_gap_target, vcap_gap_calls
    .hidden vcap_gap_target, vcap_gap_calls
    .text
    .set gap, 0

    .macro gap_stub name
    .globl \name, vcap_stub_\name
    .hidden vcap_stub_\name
    .type \name, %function
    .type vcap_stub_\name, %function
    .balign 16
\name:
vcap_stub_\name:
    .cfi_startproc
    adrp x16, vcap_gap_calls+8*gap
    add x16, x16, #:lo12:vcap_gap_calls+8*gap
1:  ldxr x9, [x16]
    add x9, x9, #1
    stxr w10, x9, [x16]
    cbnz w10, 1b
    adrp x16, vcap_gap_target+8*gap
    ldr x16, [x16, #:lo12:vcap_gap_target+8*gap]
    cbz x16, 2f
    br x16
2:  mov w9, #gap
    b resolve
    .cfi_endproc
    .size \name, .-\name
    .set gap, gap + 1
    .endm

#define GAP(base, since, suffix, lost) gap_stub base##suffix;
#define GAP_STREAM(base, since, suffix, lost) gap_stub base##suffix; gap_stub base##suffix##_ptsz;
#include "preload/cuda_api.def"

    .type resolve, %function
resolve:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_adjust_cfa_offset 224
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov w0, w9
    bl vcap_gap_first
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x2, x3, [sp, #32]
    ldp x4, x5, [sp, #48]
    ldp x6, x7, [sp, #64]
    ldr x8, [sp, #80]
    ldp q0, q1, [sp, #96]
    ldp q2, q3, [sp, #128]
    ldp q4, q5, [sp, #160]
    ldp q6, q7, [sp, #192]
    ldp x29, x30, [sp], #224
    .cfi_adjust_cfa_offset -224
    .cfi_restore x29
    .cfi_restore x30
    br x16
    .cfi_endproc
    .size resolve, .-resolve

    .section .bss
vcap_gap_target:
    .zero 8*gap
vcap_gap_calls:
    .zero 8*gap
    .section .note.GNU-stack, "", %progbits
