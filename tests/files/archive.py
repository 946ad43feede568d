"""The files of a version in one archive: unpacked they take ten times the room."""

import pathlib
import shutil
import tarfile

HERE = pathlib.Path(__file__).parent
# They are not in the archive, because people read them.
IN_PLAIN_VIEW = ("numbers.json", "written_by.json")


def pack(folder, version):
    """Puts what is in the folder into that of the version. The same files give the same bytes."""

    def anonymous(entry):
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        return entry

    target = HERE / version
    target.mkdir()
    for name in IN_PLAIN_VIEW:
        shutil.move(folder / name, target)
    with tarfile.open(target / "files.tar.xz", "w:xz") as archive:
        archive.add(folder, arcname=".", filter=anonymous)


def unpack(version, folder):
    """Puts all files of the version into the folder."""
    for name in IN_PLAIN_VIEW:
        shutil.copy(HERE / version / name, folder)
    with tarfile.open(HERE / version / "files.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder
