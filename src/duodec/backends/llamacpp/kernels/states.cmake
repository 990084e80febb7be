# Lets a recurrent layer write its states where they are kept, and no more of them than there are. Called after llama.cpp's targets are made.
#
# llama.cpp's delta rule writes the states after the last rows of a pass behind its result, and its graph copies them into the cache:
# a seventh of a pass of Qwen3.5's shape on a CPU. Here they go there at once. Only the CPU backend learns that, so a build with another
# backend keeps the copy. Of the convolution's input, as many states are kept as the pass has rows: the delta rule does so, too.
function(duodec_replace file old new)
    file(READ ${file} text)
    string(FIND "${text}" "${new}" at)
    if(NOT at EQUAL -1)
        return()  # it was configured before
    endif()
    string(FIND "${text}" "${old}" at)
    if(at EQUAL -1)
        message(FATAL_ERROR "duodec: ${file} is of another llama.cpp; states.cmake does not fit it: ${old}")
    endif()
    string(REPLACE "${old}" "${new}" text "${text}")
    file(WRITE ${file} "${text}")
endfunction()

function(duodec_keep_states_in_place)
    if(NOT DUODEC_KERNELS OR NOT TARGET ggml-cpu)
        return()
    endif()
    get_target_property(folder llama SOURCE_DIR)
    set(graph ${folder}/models/delta-net-base.cpp)
    set(kernel ${folder}/../ggml/src/ggml-cpu/ops.cpp)
    duodec_replace(${graph}
        [[for (int64_t t = 1; t <= K; ++t) {
            const int64_t s_idx]]
        [[for (int64_t t = std::max<int64_t>(1, K - qkv_mixed->ne[0] + 1); t <= K; ++t) {
            const int64_t s_idx]])
    get_target_property(backends ggml LINK_LIBRARIES)
    list(FILTER backends INCLUDE REGEX "^ggml-")
    list(REMOVE_ITEM backends ggml-base ggml-cpu)
    if(backends)
        return()
    endif()
    duodec_replace(${graph}
        [[    ggml_build_forward_expand(gf, ggml_cpy(ctx0, src, dst));

    return output;]]
        [[    GGML_UNUSED(src);
    gdn_out->src[6] = dst;
    ggml_build_forward_expand(gf, gdn_out);

    return output;]])
    duodec_replace(${kernel}
        [[    float * state_out_base = (float *)dst->data + attn_score_elems;
]]
        [[    const ggml_tensor * kept = dst->src[6];  // rows of the cache: a state, by sequences and snapshots
    float * state_out_base = kept ? (float *)kept->data : (float *)dst->data + attn_score_elems;
    const int64_t snap_stride = kept ? kept->nb[2] / sizeof(float) : state_size_per_snap;
    const int64_t seq_stride = kept ? kept->nb[1] / sizeof(float) : H * S_v * S_v;
]])
    duodec_replace(${kernel}
        [[state_out_base + target_slot * state_size_per_snap +
                                     (iv3 * H + iv1) * S_v * S_v;]]
        [[state_out_base + target_slot * snap_stride + iv3 * seq_stride + iv1 * S_v * S_v;]])
endfunction()
