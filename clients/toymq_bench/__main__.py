"""``python -m toymq_bench``, and the script ``toymq-bench``."""

from toymq_py.command_line import run


def main() -> None:
    run("toymq-bench", "toymq_bench.cli")


if __name__ == "__main__":
    main()
