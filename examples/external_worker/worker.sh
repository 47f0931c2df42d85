#!/bin/sh
# An external worker with curl and jq: it asks for letters, prints them, and says what became of them.
#
#     sh worker.sh ADDRESS [API-KEY]
set -u
address=$1
key=${2:-}

# POST the JSON of standard input; the body of the answer is printed. It fails unless the answer is a good one.
say() {
    curl --silent --show-error --fail-with-body --max-time 90 --header 'content-type: application/json' \
        ${key:+--header "authorization: Bearer $key"} --data-binary @- "$address/v1/external/$1"
}

echo "worker.sh is ready"
while true; do
    answer=$(jq -n '{queue: "printers", wait: "30s", lease: "30s", worker: "shell"}' | say poll) || { sleep 1; continue; }
    task=$(printf '%s' "$answer" | jq -c '.tasks[0] // empty')
    [ -n "$task" ] || continue # nothing to do: ask again
    name=$(printf '%s' "$task" | jq -r '.args[0]')
    if [ -n "$name" ]; then
        echo "prints for $name (attempt $(printf '%s' "$task" | jq .attempt))"
        printf '%s' "$task" | jq '{token, result: {pages: 1, by: "shell"}}' | say complete
    else
        printf '%s' "$task" | jq '{token, type: "NoName", message: "a letter needs a name", retry: false}' | say fail
    fi || echo "too late: somebody else does it by now" # 409; nothing to clean up, the answer was dropped
done
