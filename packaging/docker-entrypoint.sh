#!/bin/sh
# Starts what the container is asked to run; the broker as the user rabbitmq, whoever owns the volume.
set -eu

case "${1-}" in
'') set -- rabbitmq-server ;;
-*) set -- rabbitmq-server "$@" ;;
esac

case "$1" in
rabbitmq-server | leveret)
  # Programs that wait for a line of the log read stdout.
  exec 2>&1
  if [ "$(id -u)" = 0 ]; then
    # A volume may come from a host or an image with other user numbers. A read-only one says so at the start.
    find /var/lib/rabbitmq \! -user rabbitmq -exec chown rabbitmq:rabbitmq {} + 2>/dev/null || :
    exec su -s /bin/sh rabbitmq -c 'exec "$0" "$@"' "$@"
  fi
  ;;
esac
exec "$@"
