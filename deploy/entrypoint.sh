#!/bin/sh
# The image's entrypoint. The first `serve` makes the token of an administrator, prints it this once, and keeps its digest alone.
set -eu
if [ "${1:-}" = serve ] && [ ! -e "$TOYMQ_AUTH_FILE" ]; then
  # Volumes are often mounted 0777, and serve refuses a file that others can replace.
  mkdir -p -m 0700 "$(dirname "$TOYMQ_AUTH_FILE")"
  token=$(toymqctl token create operator --admin --publish '>' --subscribe '>' --file "$TOYMQ_AUTH_FILE")
  echo "toymq: first start: $TOYMQ_AUTH_FILE is made. This is the token of its administrator, shown this once: $token" >&2
fi
exec toymq "$@"
