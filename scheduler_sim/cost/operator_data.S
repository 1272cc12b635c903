// The tables of measured operators, as read-only data: tables/<name>.txt.zst between
// loratory_operators_<name>_begin and _end.

.macro operator_table name
    .section .rodata.loratory_operators,"a"
    .global loratory_operators_\name\()_begin
    .global loratory_operators_\name\()_end
    .balign 16
loratory_operators_\name\()_begin:
    .incbin "\name\().txt.zst"
loratory_operators_\name\()_end:
    .byte 0
.endm

    operator_table a100_sxm
    operator_table h100_sxm
    operator_table h200_sxm
    operator_table l40s
    operator_table b200_sxm
    operator_table rtx_pro_6000_server

    .section .note.GNU-stack,"",%progbits
