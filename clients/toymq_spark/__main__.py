"""``python -m toymq_spark``, and the script ``toymq-pipeline``."""

def main() -> None:
    try:
        from toymq_py.command_line import run  # here, so that Ctrl-C meanwhile shows no traceback
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run("toymq-pipeline", "toymq_spark.cli")


if __name__ == "__main__":
    main()
