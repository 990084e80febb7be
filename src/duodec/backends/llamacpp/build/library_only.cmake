# Included by CMake right after llama.cpp's `project()`: makes the build short.
#
# Only the libraries that the bindings load are built. llama-cpp-python switches the helpers of
# llama.cpp's programs on by force; nearly half of the files of a build are theirs.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "helpers of llama.cpp's programs" FORCE)
set(LLAMA_OPENSSL OFF CACHE BOOL "HTTPS, for downloads of llama.cpp's programs" FORCE)

# The library for pictures is a target of the bindings' project, which adds it after this one. It is
# built without its decoders of files, of sound and of video, which are not used, and in few large
# units: its fifty files share headers that take longer to compile than they do.
function(duodec_shorten_pictures)
    if(NOT TARGET mtmd)
        return()
    endif()
    get_target_property(sources mtmd SOURCES)
    get_target_property(folder mtmd SOURCE_DIR)
    list(FILTER sources EXCLUDE REGEX "mtmd-helper")
    get_target_property(libraries mtmd LINK_LIBRARIES)
    list(FILTER libraries EXCLUDE REGEX "^vendor::")
    set_target_properties(mtmd PROPERTIES
        SOURCES "${sources}" LINK_LIBRARIES "${libraries}" UNITY_BUILD ON UNITY_BUILD_MODE GROUP PUBLIC_HEADER "")
    list(FILTER sources INCLUDE REGEX "^models/.*cpp$")
    set(i 0)
    foreach(source ${sources})
        math(EXPR group "${i} % 2")
        math(EXPR i "${i} + 1")
        set_source_files_properties(
            ${folder}/${source} TARGET_DIRECTORY mtmd PROPERTIES UNITY_GROUP models${group})
    endforeach()
    # a tensor that nothing was written to is no zero where it is multiplied by zero: it may be NaN
    file(READ ${folder}/models/pixtral.cpp pixtral)
    string(REPLACE "ggml_scale(ctx0, tok, 0.0)" "ggml_fill(ctx0, tok, 0.0f)" pixtral "${pixtral}")
    file(WRITE ${folder}/models/pixtral.cpp "${pixtral}")
    if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        target_compile_options(mtmd PRIVATE -O1)
        foreach(name clip mtmd mtmd-audio)  # they read files, and take most of the time
            set_source_files_properties(
                ${folder}/${name}.cpp TARGET_DIRECTORY mtmd PROPERTIES COMPILE_OPTIONS -O0)
        endforeach()
    endif()
endfunction()
cmake_language(DEFER DIRECTORY ${CMAKE_SOURCE_DIR} CALL duodec_shorten_pictures)

include(${CMAKE_CURRENT_LIST_DIR}/../kernels/kernels.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/../kernels/states.cmake)
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
    duodec_keep_states_in_place()
endfunction()
cmake_language(DEFER CALL duodec_shorten)
