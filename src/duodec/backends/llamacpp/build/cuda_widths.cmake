# Gives passes of 1 to 8 rows one order of sums on NVIDIA's cards. Included by CMake right after
# ggml's `project()`, where llama.cpp is built for CUDA; -DDUODEC_CUDA_WIDTHS=OFF leaves it alone.
#
# llama.cpp sums a product with quantised weights by four warps for 1 to 4 columns and by two for 5
# to 8, and gives flash attention the smallest tile that holds a pass's rows. Here each takes what
# one width takes: matrices what 1 column does, attention the tile that 8 rows need. Both are
# compiled in any case. Where a line reads otherwise, nothing is changed, and one line says so.
option(DUODEC_CUDA_WIDTHS "one order of sums for passes of 1 to 8 rows" ON)

# Replace a text that occurs once in the variable `name`; else `lacking` is the file to name.
macro(duodec_replace name old new)
    string(FIND "${${name}}" "${old}" duodec_first)
    string(FIND "${${name}}" "${old}" duodec_last REVERSE)
    if(duodec_first EQUAL -1 OR NOT duodec_first EQUAL duodec_last)
        set(lacking ${name}.cu)
    endif()
    string(REPLACE "${old}" "${new}" ${name} "${${name}}")
endmacro()

function(duodec_join_widths folder)
    file(READ ${folder}/mmvq.cu mmvq)
    file(READ ${folder}/fattn.cu fattn)
    if(mmvq MATCHES "duodec:")
        return()  # configured again
    endif()

    set(calc_nwarps "int calc_nwarps(ggml_type type, int ncols_dst, \
mmvq_parameter_table_id table_id, bool small_k = false, bool halve_iters = false) {\n")
    duodec_replace(mmvq "${calc_nwarps}" "${calc_nwarps}\
    if (ncols_dst <= MMVQ_MAX_BATCH_SIZE) { // duodec: as one column, whose warps are never doubled
        ncols_dst   = 1;
        halve_iters = false;
    }\n")

    set(switch_ncols1 "_switch_ncols1(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    const ggml_tensor * Q = dst->src[0];\n")
    duodec_replace(fattn "${switch_ncols1}" "${switch_ncols1}\
    // duodec: the tile of 8 rows, of as many heads as share keys
    const int64_t num_rows = ncols2 <= 8 && turing_mma_available(cc) && Q->ne[1] < 8 ? 8 : Q->ne[1];\n")
    foreach(columns 8 16 32)
        duodec_replace(fattn "Q->ne[1] <= ${columns}/ncols2" "num_rows <= ${columns}/ncols2")
    endforeach()

    # the kernel for one row splits keys by its own rule; caches that are not in f16 keep it, since
    # the others would convert all of them in each pass
    set(turing "    if (turing_mma_available(cc) && Q->ne[0] != 40 && Q->ne[0] != 72) {\n")
    set(vector "        if (can_use_vector_kernel")
    duodec_replace(fattn "${turing}${vector}) {" "${turing}${vector} \
&& (K->type != GGML_TYPE_F16 || V->type != GGML_TYPE_F16)) { // duodec")

    if(lacking)
        message(STATUS "duodec: ${lacking} of this llama.cpp reads otherwise than expected, so passes \
of 1 to 8 rows keep its own orders of sums")
        return()
    endif()
    file(WRITE ${folder}/mmvq.cu "${mmvq}")
    file(WRITE ${folder}/fattn.cu "${fattn}")
endfunction()

if(DUODEC_CUDA_WIDTHS)
    duodec_join_widths(${CMAKE_CURRENT_SOURCE_DIR}/src/ggml-cuda)
endif()
