/* The same as dlsym_x86_64.S for AArch64: see there.  x16 and x17 are free between functions. */
    .text
    .globl dlsym
    .type dlsym, %function
    .balign 16
dlsym:
    .cfi_startproc
    cbz x1, 1f
    ldrb w9, [x1]
    cmp w9, #'c'
    b.ne 4f
    ldrb w9, [x1, #1]
    cmp w9, #'u'
    b.ne 1f
5:  add x9, x0, #1
    cmp x9, #1
    b.ls 1f
    mov x2, x30
    b vcap_dlsym
4:  cmp w9, #'n'
    b.ne 1f
    ldrb w9, [x1, #1]
    cmp w9, #'v'
    b.ne 1f
    ldrb w9, [x1, #2]
    cmp w9, #'m'
    b.ne 1f
    ldrb w9, [x1, #3]
    cmp w9, #'l'
    b.eq 5b
1:  adrp x16, vcap_libc_dlsym
    ldr x16, [x16, #:lo12:vcap_libc_dlsym]
    cbz x16, 2f
    br x16
2:  stp x29, x30, [sp, #-32]!
    .cfi_adjust_cfa_offset 32
    .cfi_rel_offset x29, 0
    .cfi_rel_offset x30, 8
    stp x0, x1, [sp, #16]
    bl vcap_find_libc_dlsym
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_adjust_cfa_offset -32
    .cfi_restore x29
    .cfi_restore x30
    cbz x16, 3f
    br x16
3:  mov x0, #0
    ret
    .cfi_endproc
    .size dlsym, .-dlsym
    .section .note.GNU-stack, "", %progbits
