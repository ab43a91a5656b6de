/*
 * dlsym in front of libc's.  Ends in a tail jump, so that glibc sees the caller's own return address:
 * RTLD_NEXT and RTLD_DEFAULT depend on it.  Only a name that begins with "cu" or "nvml" asked of a real handle goes
 * to vcap_dlsym (resolve.c), with the return address as third argument.  One unversioned definition
 * serves dlsym@GLIBC_2.2.5 and dlsym@GLIBC_2.34.
 */
    .text
    .globl dlsym
    .type dlsym, @function
    .balign 16
dlsym:
    .cfi_startproc
    endbr64
    testq %rsi, %rsi
    jz 1f
    cmpb $'c', (%rsi)
    jne 4f
    cmpb $'u', 1(%rsi)
    jne 1f
5:  leaq 1(%rdi), %rax      /* RTLD_NEXT is -1, RTLD_DEFAULT is 0 */
    cmpq $1, %rax
    jbe 1f
    movq (%rsp), %rdx
    jmp vcap_dlsym
4:  cmpb $'n', (%rsi)       /* "nvml", byte by byte: nothing behind the NUL is read */
    jne 1f
    cmpb $'v', 1(%rsi)
    jne 1f
    cmpb $'m', 2(%rsi)
    jne 1f
    cmpb $'l', 3(%rsi)
    je 5b
1:  movq vcap_libc_dlsym(%rip), %rax
    testq %rax, %rax
    jz 2f
    jmp *%rax
2:  pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call vcap_find_libc_dlsym
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    testq %rax, %rax
    jz 3f
    jmp *%rax
3:  ret                     /* no libc with a dlsym: nothing can be found */
    .cfi_endproc
    .size dlsym, .-dlsym
    .section .note.GNU-stack, "", @progbits
