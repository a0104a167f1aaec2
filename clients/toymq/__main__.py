"""``python -m toymq``: the command ``toymq``."""

from toymq_py.__main__ import main

if __name__ == "__main__":
    main()
