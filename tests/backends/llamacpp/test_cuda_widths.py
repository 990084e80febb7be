"""llama.cpp's CUDA backend is changed so that 1 to 8 rows are summed in one order, or left alone.

On the lines that are changed, as the pinned version has them; nothing of it is compiled.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from duodec.backends.llamacpp.build import native

MMVQ = """\
enum mmvq_parameter_table_id {
    MMVQ_PARAMETERS_GENERIC = 0,
};

static constexpr __host__ __device__ int calc_nwarps(ggml_type type, int ncols_dst, \
mmvq_parameter_table_id table_id, bool small_k = false, bool halve_iters = false) {
    if (table_id == MMVQ_PARAMETERS_GENERIC) {
"""
FATTN = """\
template <int DKQ, int DV, int ncols2>
static void ggml_cuda_flash_attn_ext_mma_f16_switch_ncols1(ggml_backend_cuda_context & ctx, \
ggml_tensor * dst) {
    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    const ggml_tensor * Q = dst->src[0];

        if (!(has_wide_sparse && Q->ne[1] > 32/ncols2) && is_sparse[dst] == "a;b\\n") {
        if (turing_mma_available(cc) && Q->ne[1] <= 8/ncols2) {
        if (Q->ne[1] <= 16/ncols2) {
    if (Q->ne[1] <= 32/ncols2 || (GGML_CUDA_CC_IS_NVIDIA(cc) && is_turing)) {
}

    if (turing_mma_available(cc) && Q->ne[0] != 40 && Q->ne[0] != 72) {
        if (can_use_vector_kernel) {
            if (!ggml_is_quantized(K->type) && !ggml_is_quantized(V->type)) {
    if (can_use_vector_kernel) {
        if (!ggml_is_quantized(K->type) && !ggml_is_quantized(V->type)) {
"""

NUM_ROWS = (
    "const int64_t num_rows = ncols2 <= 8 && turing_mma_available(cc) && Q->ne[1] < 8 ? 8 : "
    "Q->ne[1];"
)
LEFT = (
    "-- duodec: {} of this llama.cpp reads otherwise than expected, so passes of 1 to 8 rows keep "
    "its own orders of sums"
)

pytestmark = pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake")


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    folder = tmp_path / "src" / "ggml-cuda"
    folder.mkdir(parents=True)
    (folder / "mmvq.cu").write_text(MMVQ)
    (folder / "fattn.cu").write_text(FATTN)
    return folder


def configure(sources: Path, *options: str) -> str:
    """What CMake says of ggml's folder."""
    command = ["cmake", *options, "-P", str(native.CUDA_WIDTHS)]
    done = subprocess.run(
        command, cwd=sources.parents[1], capture_output=True, text=True, check=True
    )
    return done.stdout + done.stderr


def added(before: str, after: str) -> list[str]:
    """Lines that were added or changed."""
    return [line for line in after.splitlines() if line not in before.splitlines()]


def test_each_width_takes_what_one_takes(sources: Path) -> None:
    assert configure(sources) == ""
    mmvq, fattn = (sources / "mmvq.cu").read_text(), (sources / "fattn.cu").read_text()
    new = added(MMVQ, mmvq)
    assert [line.strip().split(" //")[0] for line in new] == [
        "if (ncols_dst <= MMVQ_MAX_BATCH_SIZE) {",
        "ncols_dst   = 1;",
        "halve_iters = false;",
        "}",
    ]
    assert mmvq.index(new[0]) < mmvq.index("    if (table_id == MMVQ_PARAMETERS_GENERIC)")
    kept = FATTN.replace("Q->ne[1] <=", "num_rows <=")
    assert [line.strip().split(" //")[0] for line in added(kept, fattn)] == [
        "// duodec: the tile of 8 rows, of as many heads as share keys",
        NUM_ROWS,
        "if (can_use_vector_kernel && (K->type != GGML_TYPE_F16 || V->type != GGML_TYPE_F16)) {",
    ]
    assert 'Q->ne[1] > 32/ncols2) && is_sparse[dst] == "a;b\\n")' in fattn
    assert fattn.endswith(FATTN[FATTN.index("    if (can_use_vector_kernel) {\n        if (!") :])


def test_sources_that_are_configured_again_are_changed_once(sources: Path) -> None:
    configure(sources)
    once = [path.read_text() for path in sorted(sources.iterdir())]
    assert configure(sources) == ""
    assert [path.read_text() for path in sorted(sources.iterdir())] == once


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("mmvq.cu", "bool halve_iters = false", "int num_iters = 0"),
        ("fattn.cu", "Q->ne[1] <= 16/ncols2", "Q->ne[1] < 17/ncols2"),
        ("fattn.cu", "}\n", "        if (Q->ne[1] <= 8/ncols2) {\n}\n"),
        ("fattn.cu", "Q->ne[0] != 40 && Q->ne[0] != 72", "Q->ne[0] != 40"),
        ("fattn.cu", "    const ggml_tensor * Q = dst->src[0];\n", ""),
    ],
)
def test_sources_that_read_otherwise_are_left_alone_and_named(
    name: str, old: str, new: str, sources: Path
) -> None:
    (sources / name).write_text((sources / name).read_text().replace(old, new))
    before = [path.read_text() for path in sorted(sources.iterdir())]
    assert configure(sources).splitlines() == [LEFT.format(name)]
    assert [path.read_text() for path in sorted(sources.iterdir())] == before


def test_they_can_be_left_as_they_are(sources: Path) -> None:
    assert configure(sources, "-DDUODEC_CUDA_WIDTHS=OFF") == ""
    assert (sources / "mmvq.cu").read_text() == MMVQ


def test_only_builds_for_cuda_change_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, cuda, vulkan = "", "-DGGML_CUDA=on", "-DGGML_VULKAN=ON"
    assert native.CUDA_WIDTHS in native._included(cuda).values()
    before = [native.sources_digest(args) for args in (plain, cuda, vulkan)]
    assert before[0] == before[2] != before[1]
    other = tmp_path / "other.cmake"
    other.write_text("# other changes\n")
    monkeypatch.setattr(native, "CUDA_WIDTHS", other)
    assert native.wheel_key("a cpu", cuda) != native.wheel_key("a cpu", plain)
    after = [native.sources_digest(args) for args in (plain, cuda, vulkan)]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False, True]
