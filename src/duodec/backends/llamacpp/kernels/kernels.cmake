# Compiles our kernels into llama.cpp's CPU backend; included where the build is made short.
option(DUODEC_KERNELS "our kernels for weights on the CPU" ON)
if(DUODEC_KERNELS)
    # What ours leave to llama.cpp is to have one order of sums at every width: no kernels for many rows.
    set(GGML_LLAMAFILE OFF CACHE BOOL "products of many rows")
    set(GGML_BLAS OFF CACHE BOOL "products of many rows by a library, macOS's own by default")
endif()

function(duodec_add_kernels folder)
    if(NOT DUODEC_KERNELS OR NOT TARGET ggml-cpu OR NOT CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        return()
    endif()
    target_sources(ggml-cpu PRIVATE ${folder}/ggml_backend.cpp)
    target_compile_options(ggml-cpu PRIVATE -U__ARM_FEATURE_MATMUL_INT8)  # nor those for two rows at once
    # the same sums on every compiler: no product and sum is fused but where the code says so
    set_source_files_properties(${folder}/ggml_backend.cpp TARGET_DIRECTORY ggml-cpu PROPERTIES
        COMPILE_OPTIONS "-O3;-std=gnu++17;-ffp-contract=off;-fno-math-errno;-fvisibility=hidden;-w")
endfunction()
