#!/bin/sh
# The approval of approval_machine.py over HTTP, with curl: two people, each with an API key that says who they are.
#
# To run it: sh examples/approval_curl.sh
set -eu

here=$(dirname "$0")
folder=$(mktemp -d)
port=${PORT:-8470}
api=http://127.0.0.1:$port
export PERDURE_STORE="sqlite:///$folder/approvals.db"
trap 'kill "$server" 2>/dev/null; wait "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT

# A key is shown once. The role sender lets its owner start and send; clerk and manager are words of the business,
# which the machine asks for.
key() {
    perdure keys create "$1" --role sender --role "$2" --json | sed -n 's/.*"secret": *"\([^"]*\)".*/\1/p'
}
ada=$(key ada clerk)
max=$(key max manager)

perdure serve "$here/approval_machine.py" --work --port "$port" >"$folder/serve.log" 2>&1 &
server=$!
until curl -sf "$api/health/ready" >/dev/null; do sleep 0.1; done

# say KEY METHOD PATH [BODY]: the status and the answer.
say() {
    curl -s -X "$2" "$api$3" -H "authorization: Bearer $1" -H 'content-type: application/json' \
        ${4:+-d "$4"} -w ' (%{http_code})\n'
}

echo "Ada asks for money:"
say "$ada" POST /v1/executions '{"workflow": "approval", "id": "expense-1", "input": {"who": "Ada", "cents": 4200}}'
say "$ada" POST '/v1/executions/expense-1/events?wait=10s' '{"name": "submit"}'

echo "She cannot approve it herself:"
say "$ada" POST /v1/executions/expense-1/events '{"name": "approve"}'

echo "The manager can, and sending it twice is sending it once:"
say "$max" POST /v1/executions/expense-1/events '{"name": "approve", "id": "approve-1"}'
say "$max" POST /v1/executions/expense-1/events '{"name": "approve", "id": "approve-1"}'

echo "The result:"
say "$ada" GET '/v1/executions/expense-1/result?wait=10s'
