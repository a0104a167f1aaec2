"""``python -m toymq_bench``, and the script ``toymq-bench``."""

def main() -> None:
    try:
        from toymq_py.command_line import run  # here, so that Ctrl-C meanwhile shows no traceback
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run("toymq-bench", "toymq_bench.cli")


if __name__ == "__main__":
    main()
