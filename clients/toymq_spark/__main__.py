"""``python -m toymq_spark``, and the script ``toymq-pipeline``."""

from toymq_py.command_line import run


def main() -> None:
    run("toymq-pipeline", "toymq_spark.cli")


if __name__ == "__main__":
    main()
