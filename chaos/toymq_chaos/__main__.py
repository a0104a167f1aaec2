"""``python -m toymq_chaos``, and the script ``toymq-chaos``."""

from toymq_py.command_line import run


def main() -> None:
    run("toymq-chaos", "toymq_chaos.cli")


if __name__ == "__main__":
    main()
