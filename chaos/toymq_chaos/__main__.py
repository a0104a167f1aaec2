"""``python -m toymq_chaos``, and the script ``toymq-chaos``."""

def main() -> None:
    try:
        from toymq_py.command_line import run  # here, so that Ctrl-C meanwhile shows no traceback
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run("toymq-chaos", "toymq_chaos.cli")


if __name__ == "__main__":
    main()
