"""``python -m toymq_py``, and the script ``toymq``."""

def main() -> None:
    try:
        from toymq_py.command_line import run  # here, so that Ctrl-C meanwhile shows no traceback
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    run("toymq", "toymq_py.cli")


if __name__ == "__main__":
    main()
