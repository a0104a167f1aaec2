"""Copies of a directory on a simulated disk."""

from tests.support.sim_disk import SimDisk


def copy_tree(disk: SimDisk, path: str, to: str) -> None:
    disk.mkdir(to)
    for name in disk.listdir(path):
        if disk.is_dir(f"{path}/{name}"):
            copy_tree(disk, f"{path}/{name}", f"{to}/{name}")
        elif name != "LOCK":
            file = disk.open(f"{to}/{name}", create=True)
            file.pwrite(disk.read_file(f"{path}/{name}"), 0)
            file.close()
