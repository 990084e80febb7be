# Included by CMake right after llama.cpp's `project()`: makes the build short.
#
# Only the libraries that the bindings load are built. llama-cpp-python switches the helpers of
# llama.cpp's programs on by force; nearly half of the files of a build are theirs.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "helpers of llama.cpp's programs" FORCE)
set(LLAMA_OPENSSL OFF CACHE BOOL "HTTPS, for downloads of llama.cpp's programs" FORCE)

include(${CMAKE_CURRENT_LIST_DIR}/../kernels/kernels.cmake)
set(DUODEC_KERNELS_FOLDER ${CMAKE_CURRENT_LIST_DIR}/../kernels)

function(duodec_shorten)
    foreach(name cpp-httplib vendor-hash)
        if(TARGET ${name})
            set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
        endif()
    endforeach()
    # Loading and graph building take no time worth optimising for. What runs between two forward
    # passes keeps its optimisation; so do all kernels, which are ggml's.
    if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        target_compile_options(llama PRIVATE -O1)
        get_target_property(folder llama SOURCE_DIR)
        foreach(name batch context graph kv-cache kv-cache-iswa)
            set_source_files_properties(
                ${folder}/llama-${name}.cpp TARGET_DIRECTORY llama PROPERTIES COMPILE_OPTIONS -O3)
        endforeach()
    endif()
    duodec_add_kernels(${DUODEC_KERNELS_FOLDER})
endfunction()
cmake_language(DEFER CALL duodec_shorten)
