"""``python -m toymqctl``, and the script ``toymqctl``."""

from toymq_py.command_line import run


def main() -> None:
    run("toymqctl", "toymqctl.cli")


if __name__ == "__main__":
    main()
