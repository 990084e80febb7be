"""Build llama.cpp for Vulkan and Mesa's software device into a folder, for tests without a GPU.

For Debian and Ubuntu. Where the system's Vulkan headers are too old for llama.cpp, those of
Debian 13 are unpacked into duodec's cache. The folder gets the library and `environment`, a file to
be sourced, with which duodec computes on the software device; the environment that this Python
belongs to stays as it is.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import NoReturn

from duodec.backends.cpu import cpu_key
from duodec.backends.llamacpp.build import native, toolchains
from duodec.machine.install import pip_command

PACKAGES = ("glslc", "mesa-vulkan-drivers", "libvulkan-dev", "spirv-headers")
DRIVERS = Path("/usr/share/vulkan/icd.d")
NEWER = "deb [signed-by={}] {} trixie main\n"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


def main(folder: Path) -> None:
    """Make the folder, or bring it up to date."""
    driver = next(DRIVERS.glob("lvp_icd*.json"), None)
    if driver is None or shutil.which("glslc") is None:
        _install()
        driver = next(DRIVERS.glob("lvp_icd*.json"), None)
    if driver is None:
        _fail(f"no software device in {DRIVERS}; install mesa-vulkan-drivers")
    headers = native.cache_folder() / toolchains.OWN_HEADERS
    try:
        try:
            args = toolchains.cmake_args("vulkan", headers=headers)
        except toolchains.ToolchainMissing:
            _unpack_headers(headers.parent)
            args = toolchains.cmake_args("vulkan", headers=headers)
        with pip_command() as pip:
            wheel = native.find_or_build(pip, cpu_key(), args, _say)
    except (native.BuildFailed, toolchains.ToolchainMissing) as error:
        _fail(str(error))
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("llama_cpp/lib/"):
                archive.extract(name, folder)
    library = (folder / "llama_cpp" / "lib").resolve()
    settings = {
        "LLAMA_CPP_LIB_PATH": library,
        "VK_ICD_FILENAMES": driver,
        "GGML_VK_VISIBLE_DEVICES": 0,  # llama.cpp leaves software devices out by itself
        "GGML_VK_DISABLE_F16": 1,  # the driver's compiler fails on these
        "GGML_VK_DISABLE_COOPMAT": 1,
    }
    lines = [f"export {name}='{value}'" for name, value in settings.items()]
    (folder / "environment").write_text("\n".join(lines) + "\n", encoding="utf-8")
    _say(f"ready: make test-gpu, or . {folder}/environment")


def _install() -> None:
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        _fail(f"packages are missing; install them: apt-get install {' '.join(PACKAGES)}")
    _say(f"installing {', '.join(PACKAGES)}")
    for command in (["apt-get", "update"], ["apt-get", "install", "--yes", *PACKAGES]):
        if subprocess.run([*command, "-qq"], stdout=subprocess.DEVNULL, check=False).returncode:
            _fail(f"{' '.join(command)} failed, its message is above")


def _unpack_headers(folder: Path) -> None:
    """Vulkan's headers of Debian 13, which need nothing of it. The system's lists stay as they
    are."""
    if shutil.which("apt-get") is None or not KEYRING.exists():
        _fail("the Vulkan headers here are too old, and there is no Debian to take newer ones from")
    _say("the system's Vulkan headers are too old: unpacking those of Debian 13 beside")
    apt = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "sources.list").write_text(NEWER.format(KEYRING, _mirror()), encoding="utf-8")
    options = [
        f"Dir::Etc::sourcelist={apt / 'sources.list'}", "Dir::Etc::sourceparts=/dev/null",
        f"Dir::State::lists={apt / 'lists'}", f"Dir::Cache={apt / 'cache'}",
    ]  # fmt: skip
    command = ["apt-get", "-qq", *(word for option in options for word in ("-o", option))]
    for more in (["update"], ["download", "libvulkan-dev", "spirv-headers"]):
        if subprocess.run([*command, *more], cwd=apt, check=False).returncode:
            _fail(f"apt-get {more[0]} failed, its message is above")
    unpacker = shutil.which("dpkg-deb") or "dpkg-deb"
    for package in apt.glob("*.deb"):
        subprocess.run([unpacker, "--extract", str(package), str(folder)], check=True)
    shutil.rmtree(apt)


def _mirror() -> str:
    """Where this system has Debian's packages from."""
    asked = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Origin: Debian"]
    told = subprocess.run(asked, stdout=subprocess.PIPE, check=False).stdout.decode().split()
    if not told:
        _fail("the Vulkan headers here are too old, and apt knows no source of Debian's packages")
    return min(told, key=len)  # not that of security updates


def _say(line: str) -> None:
    print(f"duodec: {line}", file=sys.stderr, flush=True)


def _fail(line: str) -> NoReturn:
    sys.exit(f"duodec: {line}")


def is_cached() -> bool:
    """Whether the folder can be made without building anything."""
    try:
        headers = native.cache_folder() / toolchains.OWN_HEADERS
        args = toolchains.cmake_args("vulkan", headers=headers)
    except toolchains.ToolchainMissing:
        return False
    return any(DRIVERS.glob("lvp_icd*.json")) and native.cached(cpu_key(), args) is not None


if __name__ == "__main__":
    if sys.argv[1:] == ["--is-cached"]:
        sys.exit(not is_cached())
    main(Path(sys.argv[1]))
