#!/bin/bash
# rabbitmq-c's command-line tools: amqp-declare-queue, amqp-publish, amqp-get, amqp-consume, amqp-delete-queue.
url=${AMQP_URL:-amqp://guest:guest@127.0.0.1:5672/%2F}
run=interop.$$.$RANDOM
failed=0

check() { # FEATURE WHAT EXPECTED GOT
  [ "$3" = "$4" ] && return
  echo "fail $1: $2: expected '$3', got '$4'" | tr '\n' ' '
  echo
  failed=1
  return 1
}
ok() { echo "ok $1"; }

q=$run.queue
check declare "declared" "$q" "$(amqp-declare-queue --url="$url" -d -q "$q")" &&
  check declare "a server's name" amq.gen- "$(amqp-declare-queue --url="$url" -q '' | cut -c1-8)" && ok declare

printf 'a body\nof two lines' | amqp-publish --url="$url" -r "$q" -p -C text/plain -E utf-8
amqp-publish --url="$url" -r "$q" -p -b second -t reply -H 'key: value'
check get "the first message" "$(printf 'a body\nof two lines')" "$(amqp-get --url="$url" -q "$q")" &&
  check get "the second message" second "$(amqp-get --url="$url" -q "$q")" &&
  { amqp-get --url="$url" -q "$q"; check get "exit code for an empty queue" 2 $?; } && ok get

for n in 1 2 3; do amqp-publish --url="$url" -r "$q" -b "$n,"; done
check consume "three messages" "1,2,3," "$(timeout 10 amqp-consume --url="$url" -q "$q" -c 3 -p 1 cat)" && ok consume

head -c 3000000 /dev/zero | tr '\0' x | amqp-publish --url="$url" -r "$q"
check large "bytes" 3000000 "$(amqp-get --url="$url" -q "$q" | wc -c)" && ok large

error=$(amqp-get --url="$url" -q "$run.nowhere" 2>&1)
case $error in
  *"NOT_FOUND - no queue '$run.nowhere' in vhost '/'"*) ok channel-errors ;;
  *) check channel-errors "error" NOT_FOUND "$error" ;;
esac
error=$(amqp-get --url="${url/guest:guest/guest:wrong}" -q "$q" 2>&1)
case $error in
  *"ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile."*) ok connect ;;
  *) check connect "error" ACCESS_REFUSED "$error" ;;
esac

if [ -n "${AMQPS_URL:-}" ]; then
  check tls "a queue" "$q" "$(amqp-declare-queue --url="$AMQPS_URL" --ssl --cacert "$INTEROP_CA" -d -q "$q")" && ok tls
else
  echo "n/a tls: the broker has no TLS listener yet"
fi
for feature in confirms tx cancel-notify connection-errors properties idle frozen stalled blocked restart kill consumer-timeout concurrency; do
  echo "n/a $feature: the tools have nothing for it"
done
check declare "deleted with messages" 0 "$(amqp-delete-queue --url="$url" -q "$q")"
exit $failed
