"""The directories of topics in a data directory, for what knows no open broker. Contract: storage.md, "Layout"."""

from toymq_py.names import is_topic_name
from toymq_py.storage.fs import FileSystem


def topic_names(fs: FileSystem, data_dir: str) -> list[str]:
    """Names of the topics that the broker would open. Raises: OSError."""
    root = f"{data_dir}/topics"
    if not fs.is_dir(root):
        return []
    return [name for name in fs.listdir(root) if is_topic_name(name) and fs.is_dir(f"{root}/{name}")]
