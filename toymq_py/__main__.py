"""``python -m toymq_py``, and the script ``toymq``."""

from toymq_py.command_line import run


def main() -> None:
    run("toymq", "toymq_py.cli")


if __name__ == "__main__":
    main()
