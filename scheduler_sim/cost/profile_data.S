// The profiles of measured servers, as read-only data: profiles/<engine>/<model>.json between
// loratory_profile_<name>_begin and _end.

.macro profile name, file
    .section .rodata.loratory_profiles,"a"
    .global loratory_profile_\name\()_begin
    .global loratory_profile_\name\()_end
loratory_profile_\name\()_begin:
    .incbin "\file"
loratory_profile_\name\()_end:
    .byte 0
.endm

    profile vllm_08_llama_31_8b, "vllm-0.8/llama-3.1-8b.json"
    profile vllm_08_qwen_25_7b, "vllm-0.8/qwen2.5-7b.json"

    .section .note.GNU-stack,"",%progbits
