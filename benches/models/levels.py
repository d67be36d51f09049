"""The instruction sets of the peers for each ISA level of symshape."""

# The limit of oneDNN, the library of OpenVINO's kernels.
ONEDNN_ISAS = {
    "x86-64-v3": "AVX2",
    "x86-64-v3-vnni": "AVX2_VNNI",
    "x86-64-v4": "AVX512_CORE",
    "x86-64-v4-vnni": "AVX512_CORE_VNNI",
}
