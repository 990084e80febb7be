"""What another user could change is not run, whatever links lead to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from duodec.machine import ownership
from duodec.machine.ownership import Unsafe, check_owned

NAME = "library.so"


def made_in(folder: Path) -> Path:
    """A file of ours, in a new folder of ours."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / NAME
    path.write_bytes(b"run")
    return path


def check_both(folder: Path) -> None:
    check_owned(folder)
    check_owned(folder / NAME)


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_others_may_write_is_not_run(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "native"
    path = made_in(folder)
    check_owned(path)
    (folder if what == "folder" else path).chmod(0o777)
    with pytest.raises(Unsafe, match="is not run: others may change") as caught:
        check_owned(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
@pytest.mark.parametrize("link", ["file", "folder", "ancestor", "chain", "relative"])
def test_no_link_leads_to_what_others_may_write(
    tmp_path: Path, link: str, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that is ours, in a folder where another may put his own in its place."""
    monkeypatch.setattr(ownership, "is_own_group", lambda status: False)
    shared = tmp_path / "shared"
    inner = shared / "inner"
    inner.mkdir(parents=True, mode=0o700)
    made = made_in(inner)
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    if link == "file":
        made.rename(shared / made.name)
        (own / made.name).symlink_to(shared / made.name)
        folder = own
    elif link == "chain":
        (shared / "next").symlink_to(tmp_path / "end")
        (tmp_path / "end").symlink_to(inner)
        inner.rename(tmp_path / "real")
        inner.symlink_to(tmp_path / "real")
        (own / "first").symlink_to(shared / "next")
        folder = own / "first"
    elif link == "relative":
        (own / "up").symlink_to("../shared/inner")
        folder = own / "up"
    elif link == "folder":
        (own / "native").symlink_to(shared)
        made.rename(shared / made.name)
        folder = own / "native"
    else:
        folder = inner
    check_both(folder)
    shared.chmod(mode)
    if mode == 0o1777 and link != "folder":  # there, others cannot touch what is ours
        check_both(folder)
    else:
        with pytest.raises(Unsafe, match=r"others may change .*shared"):
            check_both(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("what", ["file", "folder", "link"])
def test_what_another_owns_is_not_run(tmp_path: Path, what: str) -> None:
    folder = tmp_path / "native"
    path = made_in(folder)
    check_owned(path)
    (tmp_path / "link").symlink_to(folder)
    os.lchown({"file": path, "folder": folder, "link": tmp_path / "link"}[what], 12345, 12345)
    with pytest.raises(Unsafe, match="others may change"):
        check_owned(tmp_path / "link" / NAME)


def test_a_folder_that_a_users_own_group_may_write_is_the_users() -> None:
    import grp
    import pwd

    name = pwd.getpwuid(os.getuid()).pw_name
    group = next((one for one in grp.getgrall() if one.gr_name == name and not one.gr_mem), None)
    if group is None:
        pytest.skip("the user has no group of his own")
    status = list(Path("/").stat())
    for mode, is_own in ((0o40775, True), (0o40777, False)):
        status[0], status[5] = mode, group.gr_gid
        assert ownership.is_own_group(os.stat_result(status)) == is_own


def test_a_strict_or_a_loose_umask_is_no_obstacle(tmp_path: Path) -> None:
    for mask in (0o077, 0o002):
        before = os.umask(mask)
        try:
            check_owned(made_in(tmp_path / str(mask)))
        finally:
            os.umask(before)
